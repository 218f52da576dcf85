"""How long `equipoise watch` takes to show a training of 100,000 steps and 60 layers, against one
of 300 steps and 3 layers (the peer of the same run).

    python benchmarks/bench_watch.py                     both, and a trace without metrics
    python benchmarks/bench_watch.py --steps 10000 --layers 24

The training is made up: metrics of every step, and a trace of every step whose layers share their
files by hard links, so that it takes 0.5 GB and not 9. Opened means: the first message is there
that draws every figure; its processor time is beside it, since the machine may be busy.
With playwright and a Chromium, also the time until the page has drawn it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.trace.chunks import save_columns
from equipoise.trace.header import TraceHeader
from equipoise.trace.layout import CHUNK_RECORDS, chunk_path, layer_folder
from equipoise.watch.access import make_access
from equipoise.watch.feed import Feed
from equipoise.watch.watch_runs import app_of_runs, bind_socket

EXPERTS, TOP_K, TOKENS = 64, 6, 4096


def make_run(folder: Path, steps: int, layers: int, *, metrics: bool = True) -> Path:
    """A run's folder, as a training of ours leaves it."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    if metrics:
        write_metrics(folder / "metrics.jsonl", steps, layers, rng)
    place = folder / "trace"
    names = tuple(f"blocks.{n}" for n in range(layers))
    for n in range(layers):
        layer_folder(place, n).mkdir(parents=True)
    TraceHeader(top_k=TOP_K, layers=names, about={"balancer": "deepseek"}).save(place)
    write_layer(layer_folder(place, 0), steps, rng)
    for n in range(1, layers):
        for path in layer_folder(place, 0).iterdir():
            (layer_folder(place, n) / path.name).hardlink_to(path)
    return folder


def write_metrics(path: Path, steps: int, layers: int, rng: np.random.Generator) -> None:
    with path.open("w") as file:
        for step in range(1, steps + 1):
            level = (0.1 + 1 / step) * rng.random(layers)
            row = {
                "kind": "train", "step": step, "loss": 2 + 5 / step, "penalty": 0.0,
                "gradient_norm": 1.0, "learning_rate": 1e-3, "tokens": step * TOKENS,
                "tokens_per_second": 1e5, "idle_share": 0.1, "imbalance": level.mean(),
                "max_violation": 2 * level.mean(),
                "layers": {"imbalance": level.tolist(), "max_violation": (2 * level).tolist()},
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")


def write_layer(folder: Path, steps: int, rng: np.random.Generator) -> None:
    even = np.full(EXPERTS, 1 / EXPERTS)
    for first in range(1, steps + 1, CHUNK_RECORDS):
        number = np.arange(first, min(first + CHUNK_RECORDS, steps + 1))
        shift = rng.normal(0, 0.1, (len(number), EXPERTS)).astype(np.float32)
        columns: dict[str, Any] = {
            "step": number,
            "shift": shift,
            "shift_after": shift,
            "loads": rng.multinomial(TOKENS * TOP_K, even, len(number)),
            "step_size": np.full(shift.shape, 1e-3),
            "unit": np.full(len(number), "counts"),
            "whole": np.zeros(len(number), bool),
            "rows": np.zeros(len(number), np.int64),
            "scores": np.zeros((0, EXPERTS), np.float32),
        }
        save_columns(chunk_path(folder, number[0], number[-1]), columns)


async def first_message(folder: Path) -> str:
    async for text in Feed([folder]).events(0):
        if text is not None:
            return text
    raise AssertionError


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def time_browser(folder: Path) -> tuple[float, float] | None:
    """Seconds until a page is drawn, and until one is drawn that was open before (so without the
    browser's start); None without a browser.
    """
    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    try:
        import uvicorn
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return None
    if path is None:
        return None
    with bind_socket("127.0.0.1", 0) as bound, sync_playwright() as started:
        app = app_of_runs([folder], make_access("127.0.0.1", None))
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        address = f"http://127.0.0.1:{bound.getsockname()[1]}/"

        def open_page() -> None:
            page.goto(address)
            page.wait_for_selector("body[data-drawn]")

        seconds = timed(open_page)[0], timed(open_page)[0]
        browser.close()
        server.should_exit = True
        thread.join()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        cases = {
            "300 steps, 3 layers": make_run(Path(place) / "small", 300, 3),
            "long": make_run(Path(place) / "long", options.steps, options.layers),
            "long, trace only": make_run(
                Path(place) / "trace", options.steps, options.layers, metrics=False
            ),
        }
        size = (cases["long"] / "metrics.jsonl").stat().st_size
        print(
            f"long: {options.steps:,} steps, {options.layers} layers, metrics {size / 1e6:.0f} MB"
        )
        for name, folder in cases.items():
            before = time.process_time()
            seconds, text = timed(lambda folder=folder: asyncio.run(first_message(folder)))
            used = time.process_time() - before
            line = f"{name}: first message {seconds:.2f} s ({used:.2f} s of processor), "
            line += f"{len(text) / 1e3:.0f} kB"
            if (drawn := time_browser(folder)) is not None:
                line += f"; page drawn {drawn[0]:.2f} s, again {drawn[1]:.2f} s"
            print(line, flush=True)


if __name__ == "__main__":
    main()
