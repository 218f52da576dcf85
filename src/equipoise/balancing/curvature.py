"""Curvature: Newton's method on the dual, one step per batch, with a gain that finds itself. Equipoise's own rule.

docs/curvature.md derives it from the paper's second directional derivative (Proposition 14): the Hessian of the expected dual
is T times the Laplacian of a graph on the experts, and the weight of the edge (k, l) is the density of tokens that hesitate
between k and l. A batch shows that density: a token whose K-th choice is a and whose runner-up is b, with a margin of at most
`bandwidth`, is one count for the pair (a, b). So with w = (W + W^T) / (2 bandwidth T), averaged over batches,

    Laplacian(w) d = (L - A) / T          d is the Newton step: where loads would be right, as far as this batch can tell
    shift += gain * d

How far to trust one batch? The optimum wanders (the router learns) and each batch shows it through sampling noise: that is the
setting of the Kalman filter, whose gain is right when successive residuals are uncorrelated. For a filter with gain g whose
residuals have lag-one correlation r, the right gain is g + r (docs/curvature.md). So the gain moves by a tenth of the
correlation it sees, and needs to know neither the noise nor the drift.

Newton is for the neighbourhood. Where loads are far off (or a single expert's is), the shift moves by the quantile rule
instead, from a histogram of every `stride`-th token.

Everything counted is a whole number that adds up; bandwidth, widths, gain and the averaged graph are state, frozen between
updates. Nothing waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.directions import Direction
from equipoise.balancing.quantile import QuantileMove
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally

FIRST_BANDWIDTH = 2.0**-6
_BOUNDARY = 0.1  # the share of tokens that should count as hesitating
_BLURRED = 0.25  # the share at which the bandwidth is too wide to show a density
_LEAST_BANDWIDTH, _MOST_BANDWIDTH = 1e-6, 1.0
_MEMORY = 0.9  # of the averaged graph, and of the usual size of a residual
_GAIN_RATE, _LEAST_GAIN = 0.1, 0.05
_FAR = 0.3  # root mean square gap, relative to the target, beyond which the dual is not quadratic
_FAR_ALONE = 0.5  # the same for one expert
_SURE = 5.0  # standard deviations of sampling noise that no chance explains
_PRIOR = 16.0  # boundary tokens per expert at which graph and mean field weigh the same


class CurvatureMove(Direction):
    """Newton step with a self-tuned gain when near balance, quantile step when far."""

    moves_when_balanced = True  # while the bandwidth is still being found it moves by quantiles
    bandwidth: Tensor
    graph: Tensor
    seen: Tensor
    gain: Tensor
    usual: Tensor
    last_gap: Tensor
    last_step: Tensor

    def __init__(self, stride: int = 8, bins: int = 512) -> None:
        super().__init__()
        if stride < 1:
            raise ValueError(f"stride must be at least 1, not {stride}")
        self.stride = stride
        self.far = QuantileMove(bins, slack=4.0)  # to find, not to resolve: Newton does that

    def build(self, num_experts: int) -> None:
        self.far.build(num_experts)
        self.register_buffer("bandwidth", torch.tensor(FIRST_BANDWIDTH))
        # sums over batches with weights 0.9, 0.81, ...: density of hesitating tokens per pair, and their number per expert
        self.register_buffer("graph", torch.zeros(num_experts, num_experts))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("gain", torch.tensor(1.0))
        self.register_buffer("usual", torch.tensor(0.0))
        self.register_buffer("last_gap", torch.zeros(num_experts))
        self.register_buffer("last_step", torch.zeros(num_experts))

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        return {"pairs": self._count_pairs(scores.shape[1], routing), **self._count_leads(scores, routing, shift)}

    def _count_pairs(self, num_experts: int, routing: Routing) -> Tensor:
        """W (E, E): tokens with K-th choice a and runner-up b, closer than the bandwidth."""
        hesitates = routing.margin <= self.bandwidth.to(routing.margin.device)
        if routing.mask is not None:
            hesitates = hesitates & ~routing.mask
        pair = routing.experts[:, -1] * num_experts + routing.runner_up
        empty = torch.zeros(num_experts**2, dtype=torch.int64, device=pair.device)
        return empty.scatter_add_(0, pair, hesitates.long()).view(num_experts, num_experts)

    def _count_leads(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        sample = slice(None, None, self.stride)
        thinned = routing._replace(
            runner_up=routing.runner_up[sample],
            margin=routing.margin[sample],
            mask=None if routing.mask is None else routing.mask[sample],
            allowed=None if routing.allowed is None else routing.allowed[sample],
        )
        return self.far.count(scores[sample], thinned, shift)

    def forward(self, tally: Tally, target: Target) -> Tensor:
        tokens = target.tokens(tally.loads)
        gap, want = target.gap(tally.loads) / tokens, target.loads(tally.loads.sum()) / tokens
        noise = want * (1 - want).clamp_min(0) / tokens  # of gap, if tokens were independent
        blurred = tally.parts["pairs"].sum() > _BLURRED * tokens
        far = _is_far(gap, want, noise) | blurred
        self._see_pairs(tally.parts["pairs"], tokens, forget=far.all())
        near_gap = _without(far, gap)
        newton = self._newton(near_gap)
        gain = self._next_gain(near_gap, newton, noise, far)
        reach = self.far.width
        step = torch.where(far, self.far(tally, target), (gain * newton).clamp(-reach, reach))
        self._next_bandwidth(tally.parts["pairs"], tokens)
        return torch.where(tally.loads.sum() > 0, step, 0.0)

    def _see_pairs(self, pairs: Tensor, tokens: Tensor, forget: Tensor) -> None:
        """Average w = (W + W^T) / (2 h T), the boundary weights of Proposition 14. What was seen from afar is forgotten."""
        memory = torch.where(forget, 0.0, _MEMORY)
        density = (pairs + pairs.T) / (2 * self.bandwidth.double() * tokens)
        self.graph.mul_(memory).add_(density.to(self.graph.dtype))
        per_expert = 2 * pairs.sum() / pairs.shape[0]
        self.seen.mul_(memory).add_(torch.stack((torch.ones_like(per_expert), per_expert)))

    def _newton(self, gap: Tensor) -> Tensor:
        """Solve Laplacian(w) d = gap.

        Few tokens leave a ragged, perhaps disconnected graph. So it is mixed with its mean field, the complete graph with the
        same degrees, w_kl ~ d_k d_l / sum(d): all of it without tokens, half at 16 per expert. A ridge of a thousandth
        of the mean degree keeps experts without any boundary finite; the step's bound does the rest.
        """
        graph = self.graph.double() / self.seen[0].double()
        degree = graph.sum(1)
        total = degree.sum().clamp_min(torch.finfo(torch.float64).tiny)
        prior = _PRIOR / (_PRIOR + self.seen[1].double())
        graph = (1 - prior) * graph + prior * torch.outer(degree, degree) / total
        laplacian = torch.diag(graph.sum(1) + 1e-3 * total / len(degree)) - graph
        solution = torch.linalg.solve_ex(laplacian, gap).result
        return torch.where(torch.isfinite(solution).all(), solution - solution.mean(), 0.0)

    def _next_gain(self, gap: Tensor, newton: Tensor, noise: Tensor, far: Tensor) -> Tensor:
        """The gain for this step; the lasting one moves by the correlation of this residual with the last."""
        size = (gap * newton).sum().clamp_min(0)
        last_gap, last_step = self.last_gap.double(), self.last_step.double()
        last_size = (last_gap * last_step).sum().clamp_min(0)
        correlation = (gap * last_step).sum() / (size * last_size).sqrt()
        comparable = (size > 0) & (last_size > 0) & ~far.all()
        lasting = (self.gain + _GAIN_RATE * correlation).clamp(_LEAST_GAIN, 1.0)
        self.gain.copy_(torch.where(comparable, lasting, self.gain))
        self.last_gap.copy_(gap)
        self.last_step.copy_(newton)
        return torch.maximum(self.gain.double(), self._surprise(gap, noise, far))

    def _surprise(self, gap: Tensor, noise: Tensor, far: Tensor) -> Tensor:
        """A gain for this step alone, where the residual is far larger than usual: something happened."""
        ratio = gap.square().sum() / noise.sum().clamp_min(torch.finfo(torch.float64).tiny)
        usual = torch.where(self.usual > 0, self.usual.double(), ratio)
        spread = 1 + 4 * (2 / max(len(gap) - 1, 1)) ** 0.5  # four standard deviations of a chi-square of E - 1
        seen = _MEMORY * usual + (1 - _MEMORY) * torch.minimum(ratio, 4 * usual)
        self.usual.copy_(torch.where(far.all(), self.usual, seen))
        return (1 - spread * usual / ratio.clamp_min(torch.finfo(torch.float64).tiny)).clamp(0.0, 1.0)

    def _next_bandwidth(self, pairs: Tensor, tokens: Tensor) -> None:
        """Margins are evenly spread near 0, so the share within a bandwidth is proportional to it."""
        share = pairs.sum() / tokens
        factor = (_BOUNDARY / share.clamp_min(1e-9)).clamp_max(16.0)
        self.bandwidth.copy_((self.bandwidth * factor).clamp(_LEAST_BANDWIDTH, _MOST_BANDWIDTH))

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


def _is_far(gap: Tensor, want: Tensor, noise: Tensor) -> Tensor:
    """(E,) bool: all of them, where the loads as a whole are far off; else those that are far off alone."""
    everybody = gap.square().sum() > torch.maximum(_SURE**2 * noise.sum(), _FAR**2 * want.square().sum())
    alone = gap.abs() > torch.maximum(_SURE * noise.sqrt(), _FAR_ALONE * want)
    return everybody | alone


def _without(far: Tensor, gap: Tensor) -> Tensor:
    """The gaps of the near experts, centred so that they can be closed among themselves."""
    near = ~far
    mean = (gap * near).sum() / near.sum().clamp_min(1)
    return torch.where(near, gap - mean, 0.0)
