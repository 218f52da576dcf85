"""TeX to MathML, when the site is built: browsers draw MathML themselves, so that no script and no
font has to come from elsewhere. A page writes $...$ within a line and $$...$$ on a line of its own,
as GitHub reads them; what this reader does not know is an error of the build.

    formula = row of terms
    term    = atom, then ^ atom and _ atom
    atom    = letter, number, sign, {row} or command
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\d+(?:[.,]\d+)*|[a-zA-Z]|[^\s]")
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.+?)\\[)\]]</\1>',
    flags=re.DOTALL,
)
LETTERS = {
    name: chr(code)
    for name, code in {
        "alpha": 0x3B1, "beta": 0x3B2, "gamma": 0x3B3, "delta": 0x3B4, "epsilon": 0x3B5,
        "kappa": 0x3BA, "lambda": 0x3BB, "mu": 0x3BC, "pi": 0x3C0, "rho": 0x3C1, "sigma": 0x3C3,
        "ell": 0x2113, "infty": 0x221E,
    }.items()
}  # fmt: skip
SIGNS = {
    "sum": "∑", "prod": "∏", "int": "∫", "leftarrow": "←", "to": "→", "le": "≤", "ge": "≥",
    "ne": "≠", "approx": "≈", "in": "∈", "cdot": "·", "times": "\u00d7", "pm": "±", "lvert": "|",
    "rvert": "|", "mid": "|", "partial": "∂", "nabla": "∇", "ldots": "…", "{": "{", "}": "}",
}  # fmt: skip
NAMES = {"max", "min", "log", "exp", "sign", "mean", "asinh", "tanh"}
SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em", "qquad": "2em", " ": "0.25em"}
# a minus and an asterisk of mathematics
DRAWN_AS = {"-": "\u2212", "*": "\u2217"}
# limits stand below and above, where the formula has a line of its own
WITH_LIMITS = {"∑", "∏", "max", "min"}


def with_mathml(page: str) -> str:
    """A page's HTML in which every formula that pymdownx.arithmatex marked is MathML."""
    return FORMULA.sub(lambda found: mathml(html.unescape(found[2]), found[1] == "div"), page)


def mathml(tex: str, alone: bool = False) -> str:
    """One formula.

    >>> mathml("p_k")
    '<math><msub><mi>p</mi><mi>k</mi></msub></math>'
    """
    tokens = Tokens(tex)
    content = row(tokens, end=None, alone=alone)
    return f'<math display="block">{content}</math>' if alone else f"<math>{content}</math>"


class Tokens:
    """The tokens of a formula, one after the other."""

    def __init__(self, tex: str) -> None:
        self.tex, self.place = tex, 0

    def peek(self) -> str | None:
        while self.place < len(self.tex) and self.tex[self.place].isspace():
            self.place += 1
        found = TOKEN.match(self.tex, self.place)
        return found[0] if found else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise ValueError(f"formula ends too early: {self.tex}")
        self.place += len(token)
        return token

    def braced_text(self) -> str:
        """What stands between braces as it is, for words."""
        found = re.compile(r"\s*\{([^{}]*)\}").match(self.tex, self.place)
        if not found:
            raise ValueError(f"braces are missing after \\text in: {self.tex}")
        self.place = found.end()
        return found[1]


def row(tokens: Tokens, end: str | None, alone: bool) -> str:
    return "".join(terms(tokens, end, alone))


def terms(tokens: Tokens, end: str | None, alone: bool) -> Iterator[str]:
    while tokens.peek() != end:
        yield term(tokens, alone)
    if end:
        tokens.take()


def term(tokens: Tokens, alone: bool) -> str:
    base = atom(tokens, alone)
    scripts: dict[str, str] = {}
    while tokens.peek() in ("^", "_"):
        sign = tokens.take()
        scripts[sign] = atom(tokens, alone)
    return scripted(base, scripts.get("_"), scripts.get("^"), alone)


def scripted(base: str, below: str | None, above: str | None, alone: bool) -> str:
    limits = alone and re.sub(r"<[^>]+>", "", base) in WITH_LIMITS
    if below and above:
        tag = "munderover" if limits else "msubsup"
    elif below:
        tag = "munder" if limits else "msub"
    elif above:
        tag = "mover" if limits else "msup"
    else:
        return base
    return f"<{tag}>{base}{below or ''}{above or ''}</{tag}>"


def atom(tokens: Tokens, alone: bool) -> str:
    token = tokens.take()
    if token == "{":
        return f"<mrow>{row(tokens, '}', alone)}</mrow>"
    if token.startswith("\\"):
        return command(token[1:], tokens, alone)
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token.isalpha():
        return f"<mi>{token}</mi>"
    return f"<mo>{html.escape(DRAWN_AS.get(token, token))}</mo>"


def command(name: str, tokens: Tokens, alone: bool) -> str:
    if name in ("text", "mathrm"):
        # browsers leave out spaces at the ends, unless they are of the kind that does not break
        words = re.sub(r"^ | $", "\u00a0", tokens.braced_text())
        return f"<mtext>{html.escape(words)}</mtext>"
    if name == "operatorname":
        return f"<mi>{html.escape(tokens.braced_text())}</mi>"
    if name == "frac":
        return f"<mfrac>{atom(tokens, alone)}{atom(tokens, alone)}</mfrac>"
    if name == "sqrt":
        return f"<msqrt>{atom(tokens, alone)}</msqrt>"
    if name in ("left", "right"):
        return f"<mo>{html.escape(tokens.take())}</mo>"
    return symbol(name, tokens.tex)


def symbol(name: str, tex: str) -> str:
    if name in LETTERS:
        return f"<mi>{LETTERS[name]}</mi>"
    if name in SIGNS:
        return f"<mo>{SIGNS[name]}</mo>"
    if name in NAMES:
        return f"<mi>{name}</mi>"
    if name in SPACES:
        return f'<mspace width="{SPACES[name]}"></mspace>'
    raise ValueError(f"\\{name} is not known to docs/_site/mathematics.py, in: {tex}")
