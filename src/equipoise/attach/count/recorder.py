"""Recorder: a Trace of every step, with a sample of the scores, for the theorems, for replay and
for the doctor.

Of several ranks the first one writes: loads are of all ranks, the sampled scores its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.balancing.shift.dual import Dual
from equipoise.balancing.shift.stated_step_size import stated_step_size
from equipoise.routing import Tally
from equipoise.trace import TraceAbout, TraceWriter, is_trace

if TYPE_CHECKING:
    from equipoise.attach.balance import Balancing


class Recorder:
    """Writes one record per router and step.

    Args:
        folder: of the trace. One that holds a trace is continued after `balancing.load`, and
            refused otherwise.
        rows: how many tokens' scores to keep of every step and router.
    """

    def __init__(self, balancing: Balancing, folder: str | Path, rows: int) -> None:
        if rows < 0:
            raise ValueError(f"cannot keep the scores of {rows} tokens")
        top_k = {router.balancer.top_k for router in balancing.routers}
        if len(top_k) > 1:
            raise ValueError(
                "a trace is of routers that all take as many experts; here they take "
                f"{sorted(top_k)}"
            )
        self.folder, self.rows = Path(folder), rows
        self._samples: dict[str, list[Tensor | None]] = {}
        """one for every counted call, None where it showed no scores"""
        self._before: dict[str, Tensor] = {}
        self._annealed: set[str] = set()
        self._writer: TraceWriter | None = None
        if _is_writer():
            for router in balancing.routers:
                router.observer = self.keep_scores
                router.on_failure = self.forget_failed

    def keep_scores(self, router: BalancedRouter, experts: Tensor, scores: Tensor | None) -> None:
        """Keep some rows of a forward, evenly spread over it."""
        kept = scores is not None and self.rows
        sample = _thin_rows(scores, self.rows).cpu() if scores is not None and kept else None
        self._samples.setdefault(router.name, []).append(sample)

    def forget_failed(self, router: BalancedRouter) -> None:
        """Forget the scores of a forward that raised, as its counts are: it may be tried again."""
        del self._samples.get(router.name, [])[len(router.count.tallies) :]

    def remember_shifts(self, balancing: Balancing) -> None:
        """Remember the shifts that these loads came of."""
        self._before = {
            router.name: router.balancer.shift.cpu().clone() for router in balancing.routers
        }
        self._annealed = {router.name for router in balancing.routers if router.anneal_left}
        for router in balancing.routers:
            if isinstance(router.balancer, Dual):
                # one that this step leaves out has no step to state
                router.balancer.last_step = None

    def write_step(self, balancing: Balancing, tallies: Mapping[str, Tally]) -> None:
        samples, self._samples = self._samples, {}
        if not _is_writer():
            return
        if self._writer is None:
            self._writer = self._open_writer(balancing)
        for router in balancing.routers:
            loads = tallies[router.name].loads.cpu()
            shift, shift_after = self._before[router.name], router.balancer.shift.cpu()
            rows = [sample for sample in samples.get(router.name, []) if sample is not None]
            step_size = stated_step_size(router.balancer, loads)
            if router.name in self._annealed:
                # the shift was also multiplied, which is no step of the rule
                step_size = None
            self._writer.append(
                balancing.steps,
                router.name,
                shift=shift.numpy(),
                shift_after=shift_after.numpy(),
                loads=loads.numpy(),
                step_size=None if step_size is None else step_size.numpy(),
                scores=_thin_rows(torch.cat(rows), self.rows).numpy() if rows else None,
            )

    def drop_scores(self) -> None:
        self._samples = {}

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open_writer(self, balancing: Balancing) -> TraceWriter:
        """A new trace, or the one that a resumed training has begun."""
        if balancing.loaded and is_trace(self.folder):
            return TraceWriter.resume(self.folder, after=balancing.steps - 1)
        first = balancing.routers[0]
        spec = first.found.spec
        # batches come from the user's own loop, so the length of their sequences is unknown
        about = TraceAbout(
            gate=spec.score,
            sequence_length=None,
            groups=spec.groups and spec.groups[:2],
            balancer=balancing.name,
            model=type(balancing.model).__name__,
        )
        return TraceWriter(
            self.folder,
            top_k=first.balancer.top_k,
            layers=[router.name for router in balancing.routers],
            about=about,
            target=_common_target(balancing),
        )


def _common_target(balancing: Balancing) -> tuple[float, ...] | None:
    """The weights of the target loads, where they are not equal; a trace has one for all its
    layers.
    """
    targets = {tuple(router.balancer.target.weights.tolist()) for router in balancing.routers}
    if all(len(set(weights)) == 1 for weights in targets):
        return None
    if len(targets) > 1:
        raise ValueError(
            "a trace is of routers with one target; these have several: leave some out by "
            "skip=[...]"
        )
    return targets.pop()


def _is_writer() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _thin_rows(rows: Tensor, most: int) -> Tensor:
    return rows[:: max(1, -(-len(rows) // most))] if most else rows[:0]
