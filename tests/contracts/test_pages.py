"""The pages of the documents: short, reachable, without a broken link, their formulas drawn."""

import importlib.util
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
MOST_WORDS = 900
# collections that are looked up and not read through: what was decided, and what was measured when
MAY_BE_LONGER = re.compile(r"decisions\.md|log/\w+\.md")
LINKING = [
    *(f"docs/{page}" for page in PAGES),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
]
FENCED = re.compile(r"^```.*?^```$|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)


def number_of_words(text):
    """Words with a letter in them: a table of figures is looked at, and not read."""
    return sum(any(letter.isalpha() for letter in word) for word in text.split())


def links(text):
    return re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text))


def heading_ids(text):
    """Of headings, as both GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


def broken_links(name, text):
    for link in links(text):
        target, _, anchor = link.partition("#")
        if re.match(r"https?:|mailto:", link):
            continue
        path = ROOT / os.path.normpath((Path(name).parent / target) if target else name)
        with_anchor = path.exists() and anchor and path.suffix == ".md"
        if not path.exists() or (with_anchor and anchor not in heading_ids(path.read_text())):
            yield link


def site_module(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / "_site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_short(page):
    words = number_of_words((DOCS / page).read_text())
    assert words < MOST_WORDS or MAY_BE_LONGER.fullmatch(page), f"{words} words: split {page}"


@pytest.mark.parametrize("name", LINKING)
def test_links_lead_somewhere(name):
    assert list(broken_links(name, (ROOT / name).read_text())) == []


def test_broken_links_are_seen():
    page = "docs/theory/advise.md"
    text = (
        "[a](../arena.md) [b](nowhere.md) [c](../arena.md#nothing) [d](#where-it-fails) `[e](x.md)`"
    )
    assert list(broken_links(page, text)) == ["nowhere.md", "../arena.md#nothing"]


def test_files_named_in_code_and_documents_exist():
    """docs/X.md in a docstring, a message or a sentence."""
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.html")]
    for folder in ("benchmarks", "tests", "examples"):
        sources += (ROOT / folder).rglob("*.py")
    sources += [ROOT / name for name in LINKING if name != "CHANGELOG.md"]
    named = {
        (str(path.relative_to(ROOT)), found)
        for path in sources
        if path != Path(__file__)
        for found in re.findall(r"docs/[\w/-]+\.(?:md|json|png|svg|gif)", path.read_text())
    }
    assert len(named) > 40
    assert {(path, found) for path, found in named if not (ROOT / found).exists()} == set()


def test_every_page_stands_in_the_navigation_once():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/-]+\.md)$", navigation, flags=re.MULTILINE)
    assert sorted(listed) == PAGES


def formulas():
    """Every formula of the documents, outside of code."""
    for page in PAGES:
        text = FENCED.sub("", (DOCS / page).read_text())
        yield from ((page, tex) for tex in re.findall(r"\$\$(.+?)\$\$", text))
        one_line = re.sub(r"\$\$.+?\$\$", "", text)
        yield from ((page, tex) for tex in re.findall(r"\$(\S[^$\n]*?)\$", one_line))


@pytest.mark.parametrize(("page", "tex"), list(formulas()))
def test_formulas_become_mathml(page, tex):
    drawn = site_module("mathematics").mathml(tex)
    assert drawn.count("<m") == drawn.count("</m")
    assert not re.search(r"[\\$]", drawn)


@pytest.mark.parametrize(
    ("tex", "drawn"),
    [
        ("p_k^2", "<msubsup><mi>p</mi><mi>k</mi><mn>2</mn></msubsup>"),
        (r"\frac u{\sqrt n}", "<mfrac><mi>u</mi><mrow><msqrt><mi>n</mi></msqrt></mrow></mfrac>"),
        (r"\text{a < b}", "<mtext>a &lt; b</mtext>"),
    ],
)  # fmt: skip
def test_mathml_has_the_formulas_parts(tex, drawn):
    assert site_module("mathematics").mathml(tex) == f"<math>{drawn}</math>"


@pytest.mark.parametrize("tex", [r"\unknown", r"\frac{1}", "{a", "a_"])
def test_what_is_no_formula_is_refused(tex):
    with pytest.raises(ValueError, match=r"not known|too early"):
        site_module("mathematics").mathml(tex)
