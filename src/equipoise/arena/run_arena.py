"""run_arena: the streams, balancers and rates that were asked for, and what each cell achieved.

results = equipoise.run_arena(["drift", "scores/a:blocks.1"], balancers=["deepseek", "quantile"])
results.best_rates("drift")[0].steady_imbalance
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from equipoise.arena.contest import contest, plan_cells
from equipoise.arena.streams.catalogue import DEFAULT_STREAMS, distinct_streams, find_streams
from equipoise.balancing import method_specs
from equipoise.results.arena import ArenaResults, DivergedCell

CellProgress = Callable[[int, int], None]
"""called with how many cells were finished just now, and how many there are in all"""


def no_progress(finished: int, total: int) -> None:
    """Reports nothing."""


def run_arena(
    streams: Sequence[str] = (),
    *,
    balancers: Sequence[str] = (),
    rates: Sequence[float] | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    devices: int | None = None,
    tally_every: int = 1,
    out: str | Path | None = None,
    workers: int | None = None,
    on_progress: CellProgress = no_progress,
) -> ArenaResults:
    """Replay streams of scores under every balancer and rate: how even, how fast, at what cost.

    Args:
        streams: built-in ones by name, or traces: FOLDER or FOLDER:LAYER; eleven by default.
        balancers: by name; seven causal ones by default.
        rates: for every rule that has one; by default its own.
        steps: batches; by default the stream's own number.
        tokens: in a batch of a built-in stream; by default its own number.
        seed: of built-in streams.
        devices: that share the experts, for idle time; by default 8 where they divide the experts.
        tally_every: rules learn from every n-th token only.
        out: a folder that keeps each cell's figures; called again, it continues with what is there.
        workers: processes; by default as many as there are processors. 1 runs in this process.
        on_progress: called with the number of cells just finished, and of all.

    Example:
        >>> results = equipoise.run_arena(
        ...     ["thin-e8"], balancers=["none", "curvature"], steps=24, workers=1
        ... )
        >>> [row.balancer for row in results.rows]
        ['none', 'curvature']
    """
    found = distinct_streams(
        stream
        for name in streams or DEFAULT_STREAMS
        for stream in find_streams(name, seed=seed, steps=steps, tokens=tokens)
    )
    chosen = balancers or [spec.name for spec in method_specs() if spec.arena_default]
    cells = plan_cells(found, chosen, rates, devices=devices, tally_every=tally_every)
    diverged: list[DivergedCell] = []
    rows = contest(
        cells,
        out=out,
        workers=workers,
        on_cell=lambda done: on_progress(done, len(cells)),
        on_diverged=diverged.append,
    )
    return ArenaResults(", ".join(streams) or "the default streams", rows, diverged=diverged)
