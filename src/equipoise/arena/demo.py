"""demo: a small arena. Every balancer, at its own rate, on one stream of drifting scores."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.arena.cells import Cell
from equipoise.arena.contest import contest
from equipoise.arena.run_arena import CellProgress, no_progress
from equipoise.arena.streams.drifting import DriftingLogits
from equipoise.balancing import method_specs
from equipoise.results.arena import ArenaResults, DivergedCell
from equipoise.routing.measures.devices import default_devices

# Those that set a shift before they see a token. Solvers of the batch answer another question, and
# slowly: they can be asked for by name. Nor those that follow sequences, which its stream has not.
CAUSAL = tuple(spec.name for spec in method_specs("shift") if not spec.within_sequences)


def demo(
    balancers: Sequence[str] = (),
    *,
    steps: int = 60,
    tokens: int = 8192,
    experts: int = 64,
    top_k: int = 6,
    drift: float = 0.005,
    seed: int = 0,
    on_progress: CellProgress = no_progress,
) -> ArenaResults:
    """How even the loads become under each balancer, where popularity is skewed and drifts.

    Args:
        balancers: by name; all causal ones by default.
        steps: batches in the stream.
        tokens: in a batch.
        experts: how many there are.
        top_k: how many of them each token takes.
        drift: how fast the experts' popularity wanders.
        seed: of the stream.
        on_progress: called with the number of balancers just finished, and of all.

    Example:
        >>> results = equipoise.demo(["none", "quantile"], steps=12, tokens=512, experts=8, top_k=2)
        >>> results.rows[1].steady_imbalance < results.rows[0].steady_imbalance / 4
        True
    """
    sizes = {"steps": steps, "tokens": tokens, "experts": experts, "top-k": top_k}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
    stream = DriftingLogits(
        tokens, experts, steps, drift=drift, seed=seed, top_k=top_k, name="demo"
    )
    devices = default_devices(experts)
    cells = [Cell(stream, name, devices=devices) for name in balancers or CAUSAL]
    for cell in cells:
        # a wrong name or size is reported before anything runs
        cell.make_balancer()
    diverged: list[DivergedCell] = []
    rows = contest(
        cells,
        workers=1,
        on_cell=lambda done: on_progress(done, len(cells)),
        on_diverged=diverged.append,
    )
    return ArenaResults("demo", rows, diverged=diverged)
