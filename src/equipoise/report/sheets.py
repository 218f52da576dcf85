"""sheets: a figure's data as CSV, which lies beside every page and behind its CSV buttons."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

Sheets = dict[str, str]
"""CSV by the name of the figure or table"""


def csv_sheet(heading: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return text.getvalue()
