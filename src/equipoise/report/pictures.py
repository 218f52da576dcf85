"""pictures: the figures of a report as PNG, SVG or PDF files, drawn by the page itself in a browser
without a window.

The page holds plotly and the data already, so nothing is drawn twice. It takes playwright to drive
a Chromium, Chrome or Edge; every browser can save PNG and SVG by the buttons on the page.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.storage.atomic import write_text

PICTURE_KINDS = ("png", "svg", "pdf")
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "msedge",
)
WIDTH, TITLE, MARGIN = 1200, 26, 12
INK = "#1d2330"
SHARPNESS = 1.5
"""pixels of a PNG for each of the page's"""


class PlotPart(NamedTuple):
    """One plot of a picture, as text of an SVG element, with its size and what stands above it."""

    svg: str
    width: float
    height: float
    title: str = ""


def draw_pictures(page: Path, folder: Path, kind: str) -> list[Path]:
    """Write every figure of the page into the folder. Returns the files.

    Histograms are those of the last step; load maps those of the first layer, for every scheme.
    """
    if kind not in PICTURE_KINDS:
        raise ValueError(f"no pictures of kind {kind!r}: there are {', '.join(PICTURE_KINDS)}")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with _browser() as browser:
        for name, (title, parts) in _plots_of(browser, page).items():
            text, size = compose_svg(title, parts)
            made.append(folder / f"{name}.{kind}")
            _write_picture(browser, made[-1], kind, text, size)
    return made


def compose_svg(title: str, parts: list[PlotPart]) -> tuple[str, tuple[int, int]]:
    """One SVG of several plots, in rows as wide as the page, on white."""
    x, y, height, right = MARGIN, MARGIN + (TITLE if title else 0), 0.0, 0.0
    placed = [_svg_text(title, MARGIN, MARGIN + 14, 16)] if title else []
    for part in parts:
        above = TITLE if part.title else 0
        if x > MARGIN and x + part.width > WIDTH + MARGIN:
            x, y, height = MARGIN, int(y + height + MARGIN), 0.0
        if part.title:
            placed.append(_svg_text(part.title, x + 8, y + 16, 13))
        placed.append(f'<g transform="translate({x},{y + above})">{part.svg}</g>')
        x, height, right = (
            int(x + part.width + MARGIN),
            max(height, part.height + above),
            max(right, x + part.width),
        )
    size = (round(right + MARGIN), round(y + height + MARGIN))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}">'
    return f'{head}<rect width="100%" height="100%" fill="white"/>{"".join(placed)}</svg>', size


def _svg_text(words: str, x: float, y: float, size: int) -> str:
    return (
        f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="{size}" '
        f'fill="{INK}">{escape(words)}</text>'
    )


def _plots_of(browser: Any, page: Path) -> dict[str, tuple[str, list[PlotPart]]]:
    tab = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
    tab.goto(page.resolve().as_uri())
    tab.wait_for_selector("body[data-ready=yes]", timeout=120_000)
    found = tab.evaluate("() => allPictures()")
    tab.close()
    return {
        each["name"]: (each["title"], [PlotPart(**part) for part in each["parts"]])
        for each in found
    }


def _write_picture(browser: Any, path: Path, kind: str, text: str, size: tuple[int, int]) -> None:
    if kind == "svg":
        write_text(path, text)
        return
    view = {"width": size[0], "height": size[1]}
    tab = browser.new_page(viewport=view, device_scale_factor=SHARPNESS)
    tab.set_content(f"<style>body {{ margin: 0 }} svg {{ display: block }}</style>{text}")
    if kind == "png":
        tab.screenshot(path=path)
    else:
        tab.pdf(
            path=path,
            width=f"{size[0]}px",
            height=f"{size[1]}px",
            print_background=True,
            page_ranges="1",
        )
    tab.close()


@contextlib.contextmanager
def _browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "pictures are drawn by a browser, and what drives it is not installed: pip install "
            "playwright. Or open the page: its buttons save PNG and SVG"
        ) from None
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    # Chromium's sandbox refuses to work for root
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as started:
        try:
            browser = started.chromium.launch(
                executable_path=path, args=["--no-sandbox"] if as_root else []
            )
        except Error as error:
            if path is not None:
                raise ValueError(
                    f"{path} could not be started: {str(error).splitlines()[0]}"
                ) from None
            raise ValueError(
                "no browser to draw with: install Chromium, Chrome or Edge, or run `playwright "
                "install chromium`. Or open the page in any browser: its buttons save PNG and SVG"
            ) from None
        yield browser
        browser.close()
