"""Curvature: Newton's method on the dual, one step per batch, with a gain that finds itself.
Equipoise's own rule.

docs/curvature.md derives it from the paper's second directional derivative (Proposition 14): the
Hessian of the expected dual is T times the Laplacian of a graph on the experts, and the weight of
the edge (k, l) is the density of tokens that hesitate between k and l. A batch shows that density:
a token whose K-th choice is a and whose runner-up is b, with a margin of at most `bandwidth`, is
one count for the pair (a, b). So with w = (W + W^T) / (2 bandwidth T), averaged over batches,

    Laplacian(w) d = (L - A) / T          d is the Newton step: where loads would be right, as far as this batch can tell
    shift += gain * d

How far to trust one batch? The optimum wanders (the router learns) and each batch shows it through
sampling noise: that is the setting of the Kalman filter, whose gain is right when residuals are
uncorrelated with all earlier ones. The derivative of the squared residual by the gain is minus its
product with the trail, a decaying sum of earlier steps (docs/curvature.md). So the logarithm of the
gain moves by an eighth for every standard error of that correlation: the gain of a stream that
stands still falls as evidence accumulates, and neither the noise nor the drift has to be known. An
expert whose shift was just set anew starts again: its gains are at least 1/2, 1/3, 1/4, ...

Newton is for the neighbourhood. Where loads are far off (or a single expert's is), the shift moves
to where the load is right along its own coordinate, read from a histogram of flip distances
(flips.py). The same histogram bounds every Newton step by twice the tokens it is meant to flip, and
stands in for the graph where too few tokens hesitate.

Everything counted is a whole number that adds up; bandwidth, widths, gain and the averaged graph
are state, frozen between updates. Nothing waits for the device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from equipoise.balancing.shift.directions import Direction
from equipoise.balancing.shift.flips import FlipMove
from equipoise.balancing.shift.laplacian import solve_laplacian
from equipoise.balancing.shift.quantile import boundary
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally

FIRST_BANDWIDTH = 2.0**-6
FIRST_GAIN = 0.5
_BOUNDARY = 0.1  # the share of tokens that should count as hesitating
_BLURRED = 0.25  # the share at which the bandwidth is too wide to show a density
_LEAST_BANDWIDTH, _MOST_BANDWIDTH = 1e-6, 1.0
_MEMORY = 0.9  # of what is usual, and the least of the averaged graph
_GAIN_RATE, _MOST_GAIN_RATE = (
    1 / 8,
    1.0,
)  # of log gain: by standard error of the correlation, by the correlation itself
# leaves sqrt(1 + g / (2 - g)) = 1.0025 times what chance does, and is soon left when drift begins
_LEAST_GAIN = 0.01
_TRAIL = 0.8  # of the trail: of a longer one, old noise hides what has just begun
_FAR = 0.3  # root mean square gap, relative to the target, beyond which the dual is not quadratic
_FAR_ALONE = 0.5  # the same for one expert
_SURE = 5.0  # standard deviations of sampling noise that no chance explains
_PRIOR = 16.0  # hesitating tokens of an expert at which graph and histogram weigh the same
_LEEWAY = 4.0  # tokens a Newton step may flip beyond twice the number it is meant to
_TINY = torch.finfo(torch.float64).tiny


class CurvatureMove(Direction):
    """Newton step with a self-tuned gain when near balance, flip step when far."""

    needs_runner_up = True
    filters_noise = True  # by its gain
    moves_when_balanced = True  # while the bandwidth is still being found it moves by flips
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

    def __init__(self, stride: int | None = None, bins: int = 512) -> None:
        super().__init__()
        self.flips = FlipMove(stride, bins)

    def expect_parts(self, tokens: int, top_k: int, num_experts: int) -> None:
        self.flips.expect_parts(tokens, top_k, num_experts)

    def build(self, num_experts: int) -> None:
        self.flips.build(num_experts)
        self.register_buffer("bandwidth", torch.tensor(FIRST_BANDWIDTH))
        # sums over batches with falling weights: boundary weights, hesitating tokens, and the
        # weights themselves
        self.register_buffer("graph", torch.zeros(num_experts, num_experts))
        self.register_buffer("seen", torch.zeros(num_experts))
        self.register_buffer("batches", torch.tensor(0.0))
        self.register_buffer("gain", torch.tensor(FIRST_GAIN))
        self.register_buffer("usual", torch.tensor(0.0))
        for name, value in _later_buffers(num_experts).items():
            self.register_buffer(name, value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """States of before 2026-11-18 have only the last residual for a trail, and neither doubt
        nor usual_tokens.
        """
        if prefix + "last_gap" in state_dict:
            for name, value in _later_buffers(len(self.doubt)).items():
                old = name.replace("trail", "last")
                state_dict[prefix + name] = state_dict.pop(prefix + old, value)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        pairs = count_pairs(routing, scores.shape[1], self.bandwidth.to(scores.device))
        return {"pairs": pairs, **self.flips.count(scores, routing, shift)}

    def forward(self, tally: Tally, target: Target) -> Tensor:
        before = [buffer.clone() for buffer in self.buffers()]
        step = self._step(tally, target)
        some = tally.loads.sum() > 0  # a batch without tokens shows nothing, and changes nothing
        for buffer, old in zip(self.buffers(), before):
            buffer.copy_(torch.where(some, buffer, old))
        return torch.where(some, step, 0.0)

    def _step(self, tally: Tally, target: Target) -> Tensor:
        tokens = target.tokens(tally.loads)
        gap, want = target.gap(tally.loads) / tokens, target.loads(tally.loads.sum()) / tokens
        noise = (
            want * (1 - want).clamp_min(0) / tokens
        )  # variance of gap, if tokens were independent
        usual_noise = noise * self.usual.double().clamp_min(1)  # as it has been, where that is more
        blurred = tally.parts["pairs"].sum() > _BLURRED * tokens + _LEEWAY
        far = _is_far(gap, want, usual_noise) | blurred
        size = self._size(tokens)
        self._see(tally.parts["pairs"], tokens, size, forget=far.all())
        near_gap = _without(far, gap)
        from_top = self.flips.from_top(tally)
        newton = self._newton(near_gap, self.flips.slope(from_top, target))
        self._next_gain(near_gap, newton, size)
        gains = self._gains(self._surprise(near_gap, noise, far), size, far)
        self._follow(near_gap, newton, gains, size, far)
        step = gains * newton
        reach = self.flips.reach(from_top, self._degree() * step, _LEEWAY)
        step = torch.where(far, self.flips.move(from_top, target), step.clamp(-reach, reach))
        self._next_bandwidth()
        return step

    def _size(self, tokens: Tensor) -> Tensor:
        """How large this batch is against the usual one: its weight as evidence."""
        usual = torch.where(self.usual_tokens > 0, self.usual_tokens.double(), tokens)
        usual = _MEMORY * usual + (1 - _MEMORY) * tokens
        self.usual_tokens.copy_(usual)
        return tokens / usual

    def _see(self, pairs: Tensor, tokens: Tensor, size: Tensor, forget: Tensor) -> None:
        """Average w = (W + W^T) / (2 h T), the boundary weights of Proposition 14. The graph
        changes as the shift does, so it is remembered for longer where the gain is small. Far away,
        what was seen before is forgotten: only the latest graph tells how the experts lie there.
        """
        memory = torch.where(forget, 0.0, (1 - self.gain).clamp_min(_MEMORY))
        both = pairs + pairs.T
        self.graph.mul_(memory).add_(size * both / (2 * self.bandwidth.double() * tokens))
        self.seen.mul_(memory).add_(both.sum(1))
        self.batches.mul_(memory).add_(size)

    def _degree(self) -> Tensor:
        """(E,): the share of tokens an expert gains per unit of its own shift, as the graph has it."""
        return self.graph.double().sum(1) / self.batches

    def _newton(self, gap: Tensor, slope: Tensor) -> Tensor:
        """Solve Laplacian(w) d = gap.

        Few hesitating tokens leave a ragged, perhaps disconnected graph. So each edge is mixed with
        that of the complete graph whose degrees are the histogram's slopes, w_kl = s_k s_l /
        sum(s): all of it without tokens, half where the poorer expert of the two has seen 16.
        """
        graph = self.graph.double() / self.batches
        prior = _PRIOR / (_PRIOR + torch.minimum(self.seen, self.seen.unsqueeze(1)).double())
        graph = (1 - prior) * graph + prior * torch.outer(slope, slope) / slope.sum().clamp_min(
            _TINY
        )
        return solve_laplacian(graph, gap)

    def _next_gain(self, gap: Tensor, newton: Tensor, size: Tensor) -> None:
        """The lasting gain moves by the correlation of this residual with the trail of those
        before.
        """
        square = (gap * newton).sum().clamp_min(0)
        trail_square = (self.trail_gap.double() * self.trail_step).sum().clamp_min(0)
        comparable = (square > 0) & (trail_square > 0)
        correlation = (gap * self.trail_step).sum() / (square * trail_square).sqrt()
        rate = _gain_rate(len(gap)) * size.clamp_max(1)
        moved = (self.gain * (rate * correlation).exp()).clamp(_LEAST_GAIN, 1.0)
        self.gain.copy_(torch.where(comparable, moved, self.gain))

    def _gains(self, surprise: Tensor, size: Tensor, far: Tensor) -> Tensor:
        """(E,): the gains for this step. The lasting one is for a batch of the usual size.

        In units of a usual batch's noise this batch has variance 1 / size. A shift of variance P
        then takes the gain P / (P + 1 / size), and has variance gain / size after it: the Kalman
        filter's own recursion. A flip step is gain 1.
        """
        lasting = self.gain * size / (self.gain * size + 1 - self.gain)  # P = g / (1 - g)
        gains = torch.maximum(lasting, self.doubt * size / (self.doubt * size + 1))
        gains = torch.maximum(gains, surprise)
        self.doubt.copy_(torch.where(far, 1.0, gains) / size)
        return gains

    def _follow(
        self, gap: Tensor, newton: Tensor, gains: Tensor, size: Tensor, far: Tensor
    ) -> None:
        """The trail: how the shift would differ had gains been greater, d shift / d log g up to a
        factor.
        """
        keep = torch.where(far.all(), 0.0, _TRAIL * (1 - gains))
        self.trail_gap.copy_(keep * self.trail_gap + size * gap)
        self.trail_step.copy_(torch.where(far, 0.0, keep * self.trail_step + size * newton))

    def _surprise(self, gap: Tensor, noise: Tensor, far: Tensor) -> Tensor:
        """A gain for this step alone, where the residual is far larger than usual: something
        happened.
        """
        ratio = gap.square().sum() / noise.sum().clamp_min(_TINY)
        usual = torch.where(self.usual > 0, self.usual.double(), ratio)
        seen = _MEMORY * usual + (1 - _MEMORY) * torch.minimum(ratio, 4 * usual)
        self.usual.copy_(torch.where(far.all(), self.usual, seen))
        return (1 - _surprising(len(gap)) * usual / ratio.clamp_min(_TINY)).clamp(0.0, 1.0)

    def _next_bandwidth(self) -> None:
        """Margins are evenly spread near 0, so the share within a bandwidth is proportional to it.
        The share is the graph's, over many batches: of 64 tokens some six hesitate, and two or none
        by chance.
        """
        density = self.graph.double().sum() / self.batches
        wanted = torch.minimum(_BOUNDARY / density.clamp_min(_TINY), 16.0 * self.bandwidth)
        self.bandwidth.copy_(wanted.clamp(_LEAST_BANDWIDTH, _MOST_BANDWIDTH))


def _later_buffers(num_experts: int) -> dict[str, Tensor]:
    """First values of what older states lack or have under another name."""
    return {
        "usual_tokens": torch.tensor(0.0),
        "doubt": torch.ones(
            num_experts
        ),  # variance of each shift in units of a usual batch's noise, once it has moved
        "trail_gap": torch.zeros(num_experts),
        "trail_step": torch.zeros(num_experts),
    }


def count_pairs(routing: Routing, num_experts: int, bandwidth: Tensor) -> Tensor:
    """W (E, E) int64: tokens with K-th choice a and runner-up b whose margin is within the
    bandwidth.
    """
    runner_up, margin = boundary(routing)
    hesitates = margin <= bandwidth
    if routing.mask is not None:
        hesitates = hesitates & ~routing.mask
    pair = routing.experts[:, -1] * num_experts + runner_up
    empty = torch.zeros(num_experts**2, dtype=torch.int64, device=pair.device)
    return empty.scatter_add_(0, pair, hesitates.long()).view(num_experts, num_experts)


def _is_far(gap: Tensor, want: Tensor, noise: Tensor) -> Tensor:
    """(E,) bool: all of them, where the loads as a whole are far off; else those that are far off
    alone.
    """
    everybody = gap.square().sum() > torch.maximum(
        _SURE**2 * noise.sum(), _FAR**2 * want.square().sum()
    )
    alone = gap.abs() > torch.maximum(_SURE * noise.sqrt(), _FAR_ALONE * want)
    return everybody | alone


def _gain_rate(num_experts: int) -> float:
    """The standard error of a correlation over E - 1 modes is 1 / sqrt(E - 1): many experts can be
    believed sooner.
    """
    return min(_MOST_GAIN_RATE, _GAIN_RATE * math.sqrt(max(num_experts - 1, 1)))


def _surprising(num_experts: int) -> float:
    """Four standard deviations of a chi-square of E - 1 over its mean, by the cube root of Wilson
    and Hilferty (1931).
    """
    spread = 2 / (9 * max(num_experts - 1, 1))
    return (1 - spread + 4 * math.sqrt(spread)) ** 3


def _without(far: Tensor, gap: Tensor) -> Tensor:
    """The gaps of the near experts, centred so that they can be closed among themselves."""
    near = ~far
    mean = (gap * near).sum() / near.sum().clamp_min(1)
    return torch.where(near, gap - mean, 0.0)
