"""The curvature rule against every rival tuned for the stream (`make bench-arena`). Minutes to an
hour; see docs/results/curvature-streams.md.

For every built-in stream, and for the scores of every layer of `tiny` in training: all rivals at
all rates on seed 0; the two best cells of different rules are then met by curvature on further
seeds, which had no part in the choice. Differences are paired by seed, with the 95% interval of
Student's law.

The thin streams have few tokens as they are: --tally-every is for the others, and leaves them out
unless named.

    python benchmarks/arena_full.py --seeds 4
    python benchmarks/arena_full.py --streams drift e896 --tally-every 8
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from scipy import stats

import equipoise
from equipoise.arena.cells import Cell, run_cells
from equipoise.arena.contest import plan_cells
from equipoise.arena.floor import imbalance_floor
from equipoise.arena.reference import StreamReference
from equipoise.arena.streams import catalogue
from equipoise.arena.streams.stream import Stream
from equipoise.results.arena import CellResult
from equipoise.trace import Trace

Rates = dict[str, tuple[float, ...]]
RIVALS: Rates = {
    "deepseek": (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "proportional": (1e-3, 1e-2),
    "smebu": (1e-3, 3e-3, 1e-2),
    "adagrad": (1e-3, 1e-2, 1e-1),
    "quantile": (1.0, 0.5, 0.25, 0.125),
}
QUICK: Rates = {
    "deepseek": (1e-3, 1e-2),
    "smebu": (1e-3, 1e-2),
    "quantile": (1.0, 0.5, 0.25, 0.125),
}
RECORDED = "tiny"
LEVEL = 0.02  # "level": the interval of the relative difference reaches this


def measure(cells: list[Cell], level: float) -> list[CellResult]:
    """Without the exact optimum, which this question does not need."""
    return list(
        run_cells(cells, StreamReference(level, {str(cells[0].stream.steps - 1): math.nan}))
    )


def tune(stream: Stream, tally_every: int, rivals: Rates) -> list[Cell]:
    """The two best rivals on this stream, each at its best rate."""
    cells = [
        cell
        for name, rates in rivals.items()
        for cell in plan_cells([stream], [name], rates, tally_every=tally_every)
    ]
    ranked = sorted(zip(cells, measure(cells, 1.0)), key=lambda pair: pair[1].steady_imbalance)
    best: dict[str, Cell] = {}
    for cell, _ in ranked:
        best.setdefault(cell.balancer, cell)
    return list(best.values())[:2]


def everything(tally_every: int) -> list[str]:
    """An eighth of 16 tokens is two, and tells nothing."""
    return [
        *(name for name in catalogue.SYNTHETIC if tally_every == 1 or not name.startswith("thin")),
        RECORDED,
    ]


def seeded(name: str, seeds: int, steps: int | None) -> list[Stream]:
    """A built-in stream: the one to tune on, and then as many others."""
    return [
        stream
        for seed in range(seeds + 1)
        for stream in catalogue.find_streams(name, seed=seed, steps=steps)
    ]


def recorded(folder: Path, runs: int, steps: int) -> dict[str, list[Stream]]:
    """All scores of trainings of `tiny` that differ in their seed, by layer: streams whose router
    reacted to deepseek.
    """
    found: dict[str, list[Stream]] = {}
    for seed in range(runs):
        out = folder / f"{RECORDED}-{seed}"
        if not (out / "result.json").exists():
            kept = {
                "trace_scores": 10**6,
                "evaluate_every": 0,
                "checkpoint_every": 0,
                "validation_sequences": 8,
            }
            equipoise.train(
                equipoise.preset("tiny", steps=steps, seed=seed, out=str(out), resume=True, **kept)
            )
        for layer in Trace.open(out / "trace").layers:
            found.setdefault(f"{RECORDED} {layer}", []).extend(
                catalogue.find_streams(f"{out}:{layer}")
            )
    return found


def compare(name: str, streams: list[Stream], tally_every: int, grid: Rates) -> str:
    """Tune on the first, meet on the others."""
    first, *others = streams
    rivals = tune(first, tally_every, grid)
    level, seen = imbalance_floor(first), []
    for stream in others:
        cells = [Cell(stream, cell.balancer, cell.rate, 1, tally_every) for cell in rivals]
        seen.append(
            [
                each.steady_imbalance
                for each in measure(
                    [Cell(stream, "curvature", None, 1, tally_every), *cells], level
                )
            ]
        )
    ours, *theirs = np.array(seen).T
    best = int(np.argmin([each.mean() for each in theirs]))
    return row(name, ours, theirs[best], rivals[best], level)


def row(name: str, ours: np.ndarray, theirs: np.ndarray, rival: Cell, level: float) -> str:
    difference = ours / theirs - 1
    half = stats.t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / len(difference) ** 0.5
    low, high = difference.mean() - half, difference.mean() + half
    verdict = "ahead" if high < 0 else "level" if low <= LEVEL else "behind"
    return (
        f"| {name} | {level:.4f} | {ours.mean():.4f} | {rival.balancer} {rival.rate:g}: "
        f"{theirs.mean():.4f} | "
        f"{difference.mean():+.1%} ({low:+.1%} to {high:+.1%}) | {verdict} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--tally-every", type=int, default=1)
    parser.add_argument("--streams", nargs="+", help="all by default")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/recorded"),
        help=f"where the trainings of {RECORDED} are",
    )
    parser.add_argument("--steps", type=int, help="instead of the streams' own")
    parser.add_argument("--quick", action="store_true", help="rivals at fewer rates")
    options = parser.parse_args()
    grid: Rates = QUICK if options.quick else RIVALS
    torch.set_num_threads(1)
    start = time.perf_counter()
    print(
        f"{options.seeds} seeds after the one rivals are tuned on; rules learn from "
        f"1/{options.tally_every} of the tokens"
    )
    print(
        "| stream | floor | curvature | best tuned rival | difference, 95% | "
        "|\n|---|---|---|---|---|---|"
    )
    for name in options.streams or everything(options.tally_every):
        if name == RECORDED:
            found = recorded(options.out, options.seeds + 1, options.steps or 300)
        else:
            found = {name: seeded(name, options.seeds, options.steps)}
        for each, streams in found.items():
            print(compare(each, streams, options.tally_every, grid), flush=True)
    print(f"({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
