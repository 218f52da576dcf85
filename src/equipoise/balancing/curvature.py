"""Curvature: Newton's method on the dual, one step per batch, with a gain that finds itself. Equipoise's own rule.

docs/curvature.md derives it from the paper's second directional derivative (Proposition 14): the Hessian of the expected dual
is T times the Laplacian of a graph on the experts, and the weight of the edge (k, l) is the density of tokens that hesitate
between k and l. A batch shows that density: a token whose K-th choice is a and whose runner-up is b, with a margin of at most
`bandwidth`, is one count for the pair (a, b). So with w = (W + W^T) / (2 bandwidth T), averaged over batches,

    Laplacian(w) d = (L - A) / T          d is the Newton step: where loads would be right, as far as this batch can tell
    shift += gain * d

How far to trust one batch? The optimum wanders (the router learns) and each batch shows it through sampling noise: that is the
setting of the Kalman filter, whose gain is right when successive residuals are uncorrelated. For a filter with gain g whose
residuals have lag-one correlation r, the right gain is g + r (docs/curvature.md). So the gain moves by a share of the
correlation it sees (a tenth, more with many experts), and needs to know neither the noise nor the drift.

Newton is for the neighbourhood. Where loads are far off (or a single expert's is), the shift moves to where the load is right
along its own coordinate, read from a histogram of flip distances (flips.py). The same histogram bounds every Newton step by
twice the tokens it is meant to flip, and stands in for the graph where too few tokens hesitate.

Everything counted is a whole number that adds up; bandwidth, widths, gain and the averaged graph are state, frozen between
updates. Nothing waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.directions import Direction
from equipoise.balancing.flips import FlipMove
from equipoise.balancing.laplacian import solve_laplacian
from equipoise.balancing.quantile import boundary
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally

FIRST_BANDWIDTH = 2.0**-6
FIRST_GAIN = 0.5
_BOUNDARY = 0.1  # the share of tokens that should count as hesitating
_BLURRED = 0.25  # the share at which the bandwidth is too wide to show a density
_LEAST_BANDWIDTH, _MOST_BANDWIDTH = 1e-6, 1.0
_MEMORY = 0.9  # of the averaged graph, and of the usual size of a residual
_GAIN_RATE, _MOST_GAIN_RATE, _LEAST_GAIN = 0.1, 0.4, 0.05
_FEW = 64  # experts, up to which the gain moves at the first rate
_FAR = 0.3  # root mean square gap, relative to the target, beyond which the dual is not quadratic
_FAR_ALONE = 0.5  # the same for one expert
_SURE = 5.0  # standard deviations of sampling noise that no chance explains
_PRIOR = 16.0  # hesitating tokens of an expert at which graph and histogram weigh the same
_LEEWAY = 4.0  # tokens a Newton step may flip beyond twice the number it is meant to
_TINY = torch.finfo(torch.float64).tiny


class CurvatureMove(Direction):
    """Newton step with a self-tuned gain when near balance, flip step when far."""

    needs_runner_up = True
    moves_when_balanced = True  # while the bandwidth is still being found it moves by flips
    bandwidth: Tensor
    graph: Tensor
    seen: Tensor
    batches: Tensor
    gain: Tensor
    usual: Tensor
    last_gap: Tensor
    last_step: Tensor

    def __init__(self, stride: int | None = None, bins: int = 512) -> None:
        super().__init__()
        self.flips = FlipMove(stride, bins)

    def expect_parts(self, tokens: int, top_k: int, num_experts: int) -> None:
        self.flips.expect_parts(tokens, top_k, num_experts)

    def build(self, num_experts: int) -> None:
        self.flips.build(num_experts)
        self.register_buffer("bandwidth", torch.tensor(FIRST_BANDWIDTH))
        # sums over batches with weights 1, 0.9, 0.81, ...: boundary weights, hesitating tokens, and the weights themselves
        self.register_buffer("graph", torch.zeros(num_experts, num_experts))
        self.register_buffer("seen", torch.zeros(num_experts))
        self.register_buffer("batches", torch.tensor(0.0))
        self.register_buffer("gain", torch.tensor(FIRST_GAIN))
        self.register_buffer("usual", torch.tensor(0.0))
        self.register_buffer("last_gap", torch.zeros(num_experts))
        self.register_buffer("last_step", torch.zeros(num_experts))

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        pairs = count_pairs(routing, scores.shape[1], self.bandwidth.to(scores.device))
        return {"pairs": pairs, **self.flips.count(scores, routing, shift)}

    def forward(self, tally: Tally, target: Target) -> Tensor:
        tokens = target.tokens(tally.loads)
        gap, want = target.gap(tally.loads) / tokens, target.loads(tally.loads.sum()) / tokens
        noise = want * (1 - want).clamp_min(0) / tokens  # variance of gap, if tokens were independent
        usual_noise = noise * self.usual.double().clamp_min(1)  # as it has been, where that is more
        far = _is_far(gap, want, usual_noise) | (tally.parts["pairs"].sum() > _BLURRED * tokens)
        self._see(tally.parts["pairs"], tokens, forget=far.all())
        near_gap = _without(far, gap)
        from_top = self.flips.from_top(tally)
        newton = self._newton(near_gap, self.flips.slope(from_top, target))
        step = self._next_gain(near_gap, newton, noise, far) * newton
        reach = self.flips.reach(from_top, self._degree() * step, _LEEWAY)
        step = torch.where(far, self.flips.move(from_top, target), step.clamp(-reach, reach))
        self._next_bandwidth(tally.parts["pairs"], tokens)
        return torch.where(tally.loads.sum() > 0, step, 0.0)

    def _see(self, pairs: Tensor, tokens: Tensor, forget: Tensor) -> None:
        """Average w = (W + W^T) / (2 h T), the boundary weights of Proposition 14. Far away, what was seen before is
        forgotten: only the latest graph tells how the experts lie there."""
        memory = torch.where(forget, 0.0, _MEMORY)
        both = pairs + pairs.T
        self.graph.mul_(memory).add_(both / (2 * self.bandwidth.double() * tokens))
        self.seen.mul_(memory).add_(both.sum(1))
        self.batches.mul_(memory).add_(1.0)

    def _degree(self) -> Tensor:
        """(E,): the share of tokens an expert gains per unit of its own shift, as the graph has it."""
        return self.graph.double().sum(1) / self.batches

    def _newton(self, gap: Tensor, slope: Tensor) -> Tensor:
        """Solve Laplacian(w) d = gap.

        Few hesitating tokens leave a ragged, perhaps disconnected graph. So each edge is mixed with that of the complete
        graph whose degrees are the histogram's slopes, w_kl = s_k s_l / sum(s): all of it without tokens, half where the
        poorer expert of the two has seen 16.
        """
        graph = self.graph.double() / self.batches
        prior = _PRIOR / (_PRIOR + torch.minimum(self.seen, self.seen.unsqueeze(1)).double())
        graph = (1 - prior) * graph + prior * torch.outer(slope, slope) / slope.sum().clamp_min(_TINY)
        return solve_laplacian(graph, gap)

    def _next_gain(self, gap: Tensor, newton: Tensor, noise: Tensor, far: Tensor) -> Tensor:
        """The gain for this step; the lasting one moves by the correlation of this residual with the last."""
        size = (gap * newton).sum().clamp_min(0)
        last_size = (self.last_gap.double() * self.last_step).sum().clamp_min(0)
        comparable = (size > 0) & (last_size > 0)
        correlation = (gap * self.last_step).sum() / (size * last_size).sqrt()
        lasting = (self.gain + _gain_rate(len(gap)) * correlation).clamp(_LEAST_GAIN, 1.0)
        self.gain.copy_(torch.where(comparable, lasting, self.gain))
        self.last_gap.copy_(gap)
        self.last_step.copy_(newton)
        return torch.maximum(self.gain.double(), self._surprise(gap, noise, far))

    def _surprise(self, gap: Tensor, noise: Tensor, far: Tensor) -> Tensor:
        """A gain for this step alone, where the residual is far larger than usual: something happened."""
        ratio = gap.square().sum() / noise.sum().clamp_min(_TINY)
        usual = torch.where(self.usual > 0, self.usual.double(), ratio)
        spread = 1 + 4 * (2 / max(len(gap) - 1, 1)) ** 0.5  # four standard deviations of a chi-square of E - 1
        seen = _MEMORY * usual + (1 - _MEMORY) * torch.minimum(ratio, 4 * usual)
        self.usual.copy_(torch.where(far.all(), self.usual, seen))
        return (1 - spread * usual / ratio.clamp_min(_TINY)).clamp(0.0, 1.0)

    def _next_bandwidth(self, pairs: Tensor, tokens: Tensor) -> None:
        """Margins are evenly spread near 0, so the share within a bandwidth is proportional to it."""
        share = pairs.sum() / tokens
        factor = (_BOUNDARY / share.clamp_min(1e-9)).clamp_max(16.0)
        self.bandwidth.copy_((self.bandwidth * factor).clamp(_LEAST_BANDWIDTH, _MOST_BANDWIDTH))


def count_pairs(routing: Routing, num_experts: int, bandwidth: Tensor) -> Tensor:
    """W (E, E) int64: tokens with K-th choice a and runner-up b whose margin is within the bandwidth."""
    runner_up, margin = boundary(routing)
    hesitates = margin <= bandwidth
    if routing.mask is not None:
        hesitates = hesitates & ~routing.mask
    pair = routing.experts[:, -1] * num_experts + runner_up
    empty = torch.zeros(num_experts**2, dtype=torch.int64, device=pair.device)
    return empty.scatter_add_(0, pair, hesitates.long()).view(num_experts, num_experts)


def _is_far(gap: Tensor, want: Tensor, noise: Tensor) -> Tensor:
    """(E,) bool: all of them, where the loads as a whole are far off; else those that are far off alone."""
    everybody = gap.square().sum() > torch.maximum(_SURE**2 * noise.sum(), _FAR**2 * want.square().sum())
    alone = gap.abs() > torch.maximum(_SURE * noise.sqrt(), _FAR_ALONE * want)
    return everybody | alone


def _gain_rate(num_experts: int) -> float:
    """The standard error of a correlation over E - 1 modes is 1 / sqrt(E - 1): many experts can be believed sooner."""
    return min(_MOST_GAIN_RATE, _GAIN_RATE * max(1.0, ((num_experts - 1) / (_FEW - 1)) ** 0.5))


def _without(far: Tensor, gap: Tensor) -> Tensor:
    """The gaps of the near experts, centred so that they can be closed among themselves."""
    near = ~far
    mean = (gap * near).sum() / near.sum().clamp_min(1)
    return torch.where(near, gap - mean, 0.0)
