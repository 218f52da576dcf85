"""The one style of tables on the terminal: a rule below the head, no frame, nothing wasted.

As narrow as possible, since a figure that does not fit a terminal of 80 columns would be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from rich.table import Table


def terminal_table(
    headings: Sequence[str],
    *,
    title: str = "",
    caption: str = "",
    left: Sequence[str] = (),
) -> Table:
    """An empty table of rich; text in brackets is no markup in it.

    Args:
        headings: of the columns. Without any it is a list of names and figures.
        title: above it.
        caption: below it.
        left: headings of columns of words; the first always is one. Others are figures, set right.
    """
    import_optional("rich", extra="report")
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title) or None,
        title_justify="left",
        caption=escape(caption) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_header=bool(headings),
        show_edge=False,
        # the box has one space between columns; a list of two has room for more
        padding=(0, 0) if headings else (0, 1, 0, 0),
        pad_edge=False,
    )
    for place, name in enumerate(headings):
        words = not place or name in left
        table.add_column(
            escape(name),
            justify="left" if words else "right",
            vertical="bottom",
            overflow="fold",
        )
    return table
