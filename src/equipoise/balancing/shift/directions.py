"""Directions: where a rule wants the shift to go, read from a tally.

All of them descend the same dual function (the paper's eq. 28)

    f(p) = sum_i [sum of the K largest of gamma_i + p] - sum_k L_k p_k,        df/dp_k = A_k - L_k,

so the gap L - A is its negative gradient. This file holds that one; quantile.py an exact
coordinate step, curvature.py a Newton step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from equipoise.balancing.precise import Precise
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally

UNITS = ("counts", "tokens", "relative")


class Direction(Precise, ABC):
    """Says what must be counted beyond loads, and turns a tally into a direction (E,)."""

    moves_when_balanced = False
    """whether it may point somewhere when loads are balanced"""
    needs_runner_up = False
    """whether count() looks at each token's (K+1)-th choice"""
    filters_noise = False
    """whether its shift already weighs noise against drift: then there is nothing to settle"""

    @property
    def needs_scores(self) -> bool:
        """Whether it counts anything beyond loads."""
        return type(self).count is not Direction.count

    def build(self, num_experts: int) -> None:
        """Make the buffers this direction needs; called once, by the balancer it belongs to."""

    def aim(self, target: Target) -> None:
        """Learn the target of the balancer it belongs to; called once, after build()."""

    def of_experts(self, values: Tensor) -> Tensor:
        """(E,): what is kept for each price, as each expert has it. The same, unless experts share
        prices (per_device.py).
        """
        place = self._buffers.get("place")
        return values if place is None else values[place]

    def fix_sampling_stride(self, tokens: int, top_k: int, num_experts: int) -> None:
        """See Balancer.fix_sampling_stride."""

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        """Whole numbers about the batch that add up over tokens."""
        return {}

    def part_shapes(self, num_experts: int) -> dict[str, tuple[int, ...]] | None:
        """Shapes of what count() returns, by name, so that another rule's tally is refused.

        None, where a direction does not say: then nothing is checked.
        """
        return None if self.needs_scores else {}

    @abstractmethod
    def forward(self, tally: Tally, target: Target) -> Tensor:
        """The direction, (E,). May change this module's own state; called once per update."""


class LoadGap(Direction):
    """L - A, in tokens ("counts"), per token of the batch ("tokens") or per target load
    ("relative").

    The paper multiplies counts; its experiments cannot have, since at 262,144 tokens the first step
    would be 10^4. Only in "tokens" do all its findings about u hold. u_relative = u_tokens * K/E
    and u_counts = u_tokens / T.
    """

    def __init__(self, unit: str) -> None:
        super().__init__()
        if unit not in UNITS:
            raise ValueError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
        self.unit = unit

    def forward(self, tally: Tally, target: Target) -> Tensor:
        gap = target.gap(tally.loads)
        if self.unit == "tokens":
            return gap / target.tokens(tally.loads)
        if self.unit == "relative":
            return gap / target.loads(tally.loads.sum().clamp_min(1))
        return gap

    def extra_repr(self) -> str:
        return f"unit={self.unit!r}"
