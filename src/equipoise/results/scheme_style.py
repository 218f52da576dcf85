"""scheme_style: one colour and one marker for each scheme, on every page, in every picture and on
the terminal.

A scheme is found by its name; a scheme that is not known here, such as a balancer of one's own, has
a colour and a marker that follow from its name alone, so they are the same in every file and do not
depend on what else is shown.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

COLORS = {
    "grey": "#8a8f99",
    "orange": "#d98200",
    "blue": "#2a7fd4",
    "green": "#0f9d76",
    "pink": "#cc6ba8",
    "red": "#d9541e",
    "violet": "#7b61ff",
    "cyan": "#1f9fc4",
    "brown": "#9c6b3f",
    "olive": "#84891b",
    "crimson": "#c9344f",
    "slate": "#5b6fa8",
}
"""each can be read on white and on black"""
MARKERS = {
    "circle": "●",
    "square": "■",
    "diamond": "◆",
    "triangle-up": "▲",
    "triangle-down": "▼",
    "star": "★",
    "cross": "✚",
    "x": "✖",
    "pentagon": "⬟",
    "hexagon": "⬢",
    "hourglass": "⧗",
    "bowtie": "⧓",
}
"""plotly's names, and the same as a letter"""
_KNOWN = {
    "none": ("grey", "circle"),
    "aux": ("orange", "square"),
    "deepseek": ("blue", "diamond"),
    "inverse": ("green", "triangle-up"),
    "inverse_sqrt": ("pink", "triangle-down"),
    "quantile": ("red", "star"),
    "curvature": ("violet", "pentagon"),
    "curvature_ahead": ("cyan", "hexagon"),
    "proportional": ("brown", "cross"),
    "moonlight": ("olive", "x"),
    "smebu": ("crimson", "hourglass"),
    "mirror": ("slate", "bowtie"),
    "adagrad": ("green", "square"),
    "z_loss": ("brown", "diamond"),
    "base": ("crimson", "circle"),
    "sinkhorn": ("cyan", "triangle-down"),
    "bip": ("olive", "triangle-up"),
    "expert_choice": ("slate", "star"),
    "moving_quantile": ("red", "bowtie"),
    "phi": ("orange", "triangle-up"),
    "threshold": ("pink", "hexagon"),
}


class SchemeStyle(NamedTuple):
    """How a scheme looks everywhere."""

    color: str
    """as #rrggbb: CSS, plotly and rich all read it"""
    marker: str
    """plotly's name"""
    glyph: str
    """the marker as a letter"""


def style_of_scheme(name: str) -> SchemeStyle:
    """The style of a scheme or balancer, by its name.

    >>> style_of_scheme("deepseek")
    SchemeStyle(color='#2a7fd4', marker='diamond', glyph='◆')
    """
    color, marker = _KNOWN.get(name) or _style_from_name(name)
    return SchemeStyle(COLORS[color], marker, MARKERS[marker])


def styles_side_by_side(names: Sequence[str]) -> list[SchemeStyle]:
    """Of names in one picture: schemes look as everywhere; of other names each has a colour that
    nothing before it has, as long as there are any.

    >>> [style.glyph for style in styles_side_by_side(["quantile", "deepseek"])]
    ['★', '◆']
    """
    taken = {style_of_scheme(name).color for name in names if name in _KNOWN}
    found = []
    for name in names:
        style = style_of_scheme(name)
        if name not in _KNOWN:
            style = style._replace(color=_free_color(style.color, taken))
            taken.add(style.color)
        found.append(style)
    return found


def _free_color(wanted: str, taken: Set[str]) -> str:
    """The colour itself, or the next that nothing has. No grey: that is no balancing."""
    colors = list(COLORS.values())[1:]
    first = colors.index(wanted)
    free = (color for color in colors[first:] + colors[:first] if color not in taken)
    return next(free, wanted)


def styles_to_json(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """By name, as pages read them."""
    return {name: style_of_scheme(name)._asdict() for name in names}


def terminal_label(name: str, label: str) -> str:
    """The label behind its marker, in rich's markup: coloured where the terminal has colours."""
    from rich.markup import escape

    style = style_of_scheme(name)
    return f"[{style.color}]{style.glyph}[/] {escape(label)}"


def _style_from_name(name: str) -> tuple[str, str]:
    """Not Python's hash, which differs from process to process. No grey: that is no balancing."""
    number = zlib.crc32(name.encode())
    colors, markers = list(COLORS)[1:], list(MARKERS)
    return colors[number % len(colors)], markers[number // len(colors) % len(markers)]
