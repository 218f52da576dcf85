"""Placement of experts on devices: how long it takes at the size of large models, and how good it
is beside EPLB and the bound.

    python benchmarks/bench_place.py [--quick]

Loads are made: experts differ in popularity, which drifts, and each batch is of one of a few topics
that ask for other experts. Every placement is judged on the batches it was made from and, made from
the first half, on the second.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from rich.console import Console

from benchmarks.timing import Neighbours
from equipoise.placement import Placement, place
from equipoise.results.terminal_table import terminal_table

LAYERS, BATCHES, TOKENS, TOP_K = 61, 128, 4096, 8
# experts, devices, redundant, groups, nodes
CASES = (
    (256, 64, 0, None, 1),
    (256, 64, 64, None, 1),
    (256, 64, 64, 8, 8),
    (256, 8, 0, None, 1),
    (896, 64, 64, None, 1),
)


def made_loads(
    batches: int,
    layers: int,
    experts: int,
    *,
    skew: float,
    drift: float,
    topics: int,
    seed: int = 0,
) -> np.ndarray:
    """(batches, layers, experts) whole numbers: tokens of top-8 routing."""
    rng = np.random.default_rng(seed)
    popularity = skew * rng.standard_normal((layers, experts))
    topic = 0.5 * rng.standard_normal((topics, layers, experts))
    made = np.empty((batches, layers, experts), np.int64)
    for batch in range(batches):
        popularity += drift * rng.standard_normal((layers, experts))
        share = np.exp(popularity + topic[rng.integers(topics)])
        share /= share.sum(1, keepdims=True)
        # no expert can have more than every token
        share = np.minimum(share, 1 / TOP_K)
        made[batch] = rng.multinomial(TOKENS * TOP_K, share / share.sum(1, keepdims=True))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four layers, 32 batches")
    quick = parser.parse_args().quick
    layers, batches = (4, 32) if quick else (LAYERS, BATCHES)
    headings = ("E + copies / devices", "seconds", "linear", "EPLB", "placed", "bound")
    table = terminal_table(
        (*headings, "EPLB unseen", "placed unseen"),
        title=f"fullest / mean device, {layers} layers, {batches} batches",
    )
    place(made_loads(4, 1, 8, skew=1, drift=0, topics=2), devices=2, redundant=2)  # compiles
    with Neighbours() as neighbours:
        for experts, devices, redundant, groups, nodes in CASES:
            loads = made_loads(batches, layers, experts, skew=0.7, drift=0.004, topics=4)
            found = place(loads, devices=devices, redundant=redundant, groups=groups, nodes=nodes)
            kept = f", {nodes} nodes" if found.cluster.hierarchical else ""
            table.add_row(f"{experts} + {redundant} / {devices}{kept}", *figures_of(found))
    console = Console()
    console.print(table)
    console.print(f"others took {neighbours.share:.0%} of this machine's processors")


def figures_of(found: Placement) -> list[str]:
    fitted = [f"{row.fullest:.3f}" for row in found.rows()]
    _, rival, placed, _ = (f"{row.fullest:.3f}" for row in found.rows(held_out=True))
    return [f"{found.seconds:.1f}", *fitted, rival, placed]


if __name__ == "__main__":
    main()
