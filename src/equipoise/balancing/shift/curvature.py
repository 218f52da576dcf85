"""Curvature: Newton's method on the dual, one step per batch, with a gain that finds itself.
Equipoise's own rule.

docs/curvature.md derives it from the paper's second directional derivative (Proposition 14): the
Hessian of the expected dual is T times the Laplacian of a graph on the experts, and the weight of
the edge (k, l) is the density of tokens that hesitate between k and l. A batch shows that density:
a token whose K-th choice is a and whose runner-up is b, with a margin of at most `bandwidth`, is
one count for the pair (a, b). So with w = (W + W^T) / (2 bandwidth T), averaged over batches,

    Laplacian(w) d = (L - A) / T        d is the Newton step: where loads would be right, as far as
                                        this batch can tell
    shift += gain * d

How far to trust one batch? The optimum wanders (the router learns) and each batch shows it through
sampling noise: that is the setting of the Kalman filter, whose gain is right when residuals are
uncorrelated with all earlier ones. The derivative of the squared residual by the gain is minus its
product with the trail, a decaying sum of earlier steps (docs/curvature.md). So the logarithm of the
gain moves by an eighth for every standard error of that correlation: the gain of a stream that
stands still falls as evidence accumulates, and neither the noise nor the drift has to be known. An
expert whose shift was just set by a flip starts again: its gains are at least 1/2, 1/3, 1/4, ...

Newton is for the neighbourhood. Where loads are far off (or a single expert's is), the shift moves
to where the load is right along its own coordinate, read from a histogram of flip distances
(flips.py). Where flips turn back again and again they get shorter: no shift is right for a stream
that alternates. The same histogram bounds every Newton step by twice the tokens it is meant to
flip, and stands in for the graph where too few tokens hesitate.

Everything counted is a whole number that adds up; bandwidth, widths, gain and the averaged graph
are state, frozen between updates. Nothing waits for the device.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.balancing.mathematics.curvature_state import BatchEvidence, CurvatureState
from equipoise.balancing.mathematics.gains import MOST_FLIP_TRUST
from equipoise.balancing.mathematics.newton import (
    FIRST_BANDWIDTH,
    FIRST_GAIN,
    count_hesitations,
    curvature_step,
)
from equipoise.balancing.shift.directions import Direction
from equipoise.balancing.shift.flips import FlipMove
from equipoise.balancing.shift.quantile import runner_up_and_margin
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally

# what states of before 2026-11-18 lack, or have under another name
_LATER_BUFFERS = ("usual_tokens", "doubt", "trail_gap", "trail_step")


class CurvatureMove(Direction):
    """Newton step with a self-tuned gain when near balance, flip step when far."""

    needs_runner_up = True
    # by its gain
    filters_noise = True
    # while the bandwidth is still being found it moves by flips
    moves_when_balanced = True
    bandwidth: Tensor
    graph: Tensor
    seen: Tensor
    batches: Tensor
    gain: Tensor
    usual: Tensor
    usual_tokens: Tensor
    doubt: Tensor
    trail_gap: Tensor
    trail_step: Tensor
    flipped: Tensor
    flip_trust: Tensor

    def __init__(self, stride: int | None = None, bins: int = 512) -> None:
        super().__init__()
        self.flips = FlipMove(stride, bins)

    def fix_sampling_stride(self, tokens: int, top_k: int, num_experts: int) -> None:
        self.flips.fix_sampling_stride(tokens, top_k, num_experts)

    def build(self, num_experts: int) -> None:
        self.flips.build(num_experts)
        self.keep_buffer("bandwidth", FIRST_BANDWIDTH)
        self.keep_buffer("graph", 0.0, (num_experts, num_experts))
        self.keep_buffer("seen", 0.0, (num_experts,))
        self.keep_buffer("batches", 0.0)
        self.keep_buffer("gain", FIRST_GAIN)
        self.keep_buffer("usual", 0.0)
        self.keep_buffer("usual_tokens", 0.0)
        self.keep_buffer("doubt", 1.0, (num_experts,))
        self.keep_buffer("trail_gap", 0.0, (num_experts,))
        self.keep_buffer("trail_step", 0.0, (num_experts,))
        self.keep_buffer("flipped", 0.0, (num_experts,))
        self.keep_buffer("flip_trust", MOST_FLIP_TRUST, (num_experts,))

    def upgrade_state(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        """States of before 2026-11-18 have only the last residual for a trail, and neither doubt
        nor usual_tokens; later ones may lack what is remembered of flips.
        """
        if prefix + "gain" in state_dict:
            for name in ("flipped", "flip_trust"):
                state_dict.setdefault(prefix + name, self.first_value(name))
        if prefix + "last_gap" in state_dict:
            for name in _LATER_BUFFERS:
                old = name.replace("trail", "last")
                first = self.first_value(name)
                state_dict[prefix + name] = state_dict.pop(prefix + old, first)

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        pairs = count_pairs(routing, scores.shape[1], self.bandwidth.to(scores.device))
        return {"pairs": pairs, **self.flips.count(scores, routing, shift)}

    def part_shapes(self, num_experts: int) -> dict[str, tuple[int, ...]]:
        return {"pairs": (num_experts, num_experts), **self.flips.part_shapes(num_experts)}

    def forward(self, tally: Tally, target: Target) -> Tensor:
        before = self._state()
        step, after = curvature_step(before, self._evidence(tally, target))
        for old, new in zip(before, after, strict=True):
            old.copy_(new)
        return step

    def _state(self) -> CurvatureState:
        """The buffers themselves."""
        own = {name: getattr(self, name) for name in CurvatureState._fields if name != "width"}
        return CurvatureState(**own, width=self.flips.width)

    def _evidence(self, tally: Tally, target: Target) -> BatchEvidence:
        tokens, flips = target.tokens(tally.loads), tally.parts[self.flips.part]
        return BatchEvidence(
            gap=target.gap(tally.loads) / tokens,
            want=target.loads(tally.loads.sum()) / tokens,
            tokens=tokens,
            pairs=tally.parts["pairs"],
            flips=flips,
            flip_want=target.loads(target.choices(flips.sum(1).double())),
            flip_slack=self.flips.slack,
            experts_per_price=target.experts_per_price,
        )


def count_pairs(routing: Routing, num_experts: int, bandwidth: Tensor) -> Tensor:
    """W (E, E) int64: tokens with K-th choice a and runner-up b whose margin is within the
    bandwidth.
    """
    runner_up, margin = runner_up_and_margin(routing)
    hesitates = margin <= bandwidth
    if routing.mask is not None:
        hesitates = hesitates & ~routing.mask
    return count_hesitations(routing.experts[:, -1], runner_up, hesitates, num_experts)
