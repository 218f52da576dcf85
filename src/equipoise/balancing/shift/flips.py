"""Flips: how far an expert's shift must move before a token takes it, or leaves it.

    x_ik = gamma_ik + p_k - (the (K+1)-th largest of gamma_i + p)    if token i chose k: positive,
                                                                     k can fall by that much
    x_ik = gamma_ik + p_k - (the K-th largest)                       if it did not: negative,
                                                                     k must rise by that much

So if expert k's shift alone moves by s, exactly the tokens with x_ik > -s choose it: its load along
its own coordinate is known for every s, and -(the middle between the L_k-th and the (L_k + 1)-th
largest x_ik) makes it right. That is an exact minimisation of the dual f(p) over one p_k. Kimi's
quantile rule (quantile.py) measures from the (K+1)-th throughout, which keeps token prices fixed; a
runner-up then has distance 0 however far it is from being chosen, and moves are small.

Counted as a histogram, on every `stride`-th token: by default as many as leave 64 choices per
expert, at most every 16th. The tally of a batch cut into micro-batches is that of the whole if cuts
fall between strides.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.balancing.mathematics.histogram import (
    FIRST_WIDTH,
    within_groups,
)
from equipoise.balancing.shift.quantile import QuantileMove, runner_up_and_margin
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally
from equipoise.routing.kernels.reference import distance_to_flip, lead_over_runner_up

# bins reach four times as far as quantile's: to find what jumped, Newton resolves the rest
_SLACK = 4.0
_SAMPLE, _MOST_STRIDE = 64, 16


class FlipMove(QuantileMove):
    """The move that makes each load right along its own coordinate, from flip distances."""

    part = "flips"
    from_kth_choice = True

    def __init__(self, stride: int | None = None, bins: int = 512) -> None:
        super().__init__(bins, slack=_SLACK)
        if stride is not None and stride < 1:
            raise ValueError(f"stride must be at least 1, not {stride}")
        self.stride = stride

    def build(self, num_experts: int) -> None:
        # how large a batch usually is, curvature knows
        self.keep_buffer("width", FIRST_WIDTH, (num_experts,))

    def fix_sampling_stride(self, tokens: int, top_k: int, num_experts: int) -> None:
        """Parts count every n-th token too, with the n of the whole forward.

        They count the same tokens as the whole if their sizes are multiples of n.
        """
        self.stride = self.stride or default_stride(tokens, top_k, num_experts)

    def forward(self, tally: Tally, target: Target) -> Tensor:
        """The whole move: curvature weighs its evidence itself."""
        move, width, _ = self._whole_move(tally, target)
        self.width.copy_(width)
        return move

    @staticmethod
    def distance(scores: Tensor, routing: Routing, shift: Tensor) -> Tensor:
        runner_up, margin = runner_up_and_margin(routing)
        distance = distance_to_flip(lead_over_runner_up(scores + shift, runner_up), margin)
        group_margin = routing.group_margin
        return distance if group_margin is None else within_groups(distance, group_margin)

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        stride = self.stride or default_stride(
            scores.shape[0], routing.experts.shape[1], scores.shape[1]
        )
        return {self.part: self._count_every(stride, scores, routing, shift)}

    def extra_repr(self) -> str:
        return f"stride={self.stride or 'auto'}"


def default_stride(num_tokens: int, top_k: int, num_experts: int) -> int:
    """Every n-th token, so that about 64 choices per expert are seen; n from 1 to 16."""
    return max(1, min(_MOST_STRIDE, num_tokens * top_k // (num_experts * _SAMPLE)))
