"""Curvature's mathematics: a Newton step on the dual, and the gain that finds itself.

docs/curvature.md derives it and shift/curvature.py tells it as a story. Here it is one function,
`curvature_step`, from what a batch showed and what is remembered to a step and what is remembered
next. Gaps are in shares of the batch's tokens, (L - A) / T.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.mathematics.curvature_state import (
    BatchEvidence,
    CurvatureState,
    remember,
)
from equipoise.balancing.mathematics.evidence import USUAL_MEMORY, usual_size
from equipoise.balancing.mathematics.gains import (
    follow_trail,
    next_gain,
    step_gains,
    surprise_gain,
    trust_flips,
)
from equipoise.balancing.mathematics.histogram import (
    counts_from_top,
    quantile_move,
    reach_of_flips,
    slope_at_target,
)
from equipoise.balancing.mathematics.laplacian import LEAST_DIVISOR, solve_laplacian

FIRST_BANDWIDTH = 2.0**-6
FIRST_GAIN = 0.5
_BOUNDARY = 0.1  # the share of tokens that should count as hesitating
_BLURRED = 0.25  # the share at which the bandwidth is too wide to show a density
_LEAST_BANDWIDTH, _MOST_BANDWIDTH = 1e-6, 1.0
_FAR = 0.3  # root mean square gap, relative to the target, beyond which the dual is not quadratic
_FAR_ALONE = 0.5  # the same for one expert
_SURE = 5.0  # standard deviations of sampling noise that no chance explains
_PRIOR = 16.0  # hesitating tokens of an expert at which graph and histogram weigh the same
_LEEWAY = 4.0  # tokens a Newton step may flip beyond twice the number it is meant to


def count_hesitations(
    last_choice: Tensor, runner_up: Tensor, hesitates: Tensor, num_experts: int
) -> Tensor:
    """W (E, E) int64: hesitating tokens by their K-th choice and their runner-up, (T,) each."""
    pair = last_choice * num_experts + runner_up
    empty = torch.zeros(num_experts**2, dtype=torch.int64, device=pair.device)
    return empty.scatter_add(0, pair, hesitates.long()).view(num_experts, num_experts)


def curvature_step(state: CurvatureState, evidence: BatchEvidence) -> tuple[Tensor, CurvatureState]:
    """The step (E,) float64, not yet centred, and what is remembered next."""
    gap, want, tokens, pairs = evidence.gap, evidence.want, evidence.tokens, evidence.pairs
    # variance of the gap, if tokens were independent; and as it has been, where that is more
    noise = want * (1 - want).clamp_min(0) / tokens
    usual_noise = noise * state.usual.double().clamp_min(1)
    blurred = pairs.sum() > _BLURRED * tokens / evidence.experts_per_price + _LEEWAY
    far = far_experts(gap, want, usual_noise) | blurred
    state, size = _batch_size(state, tokens)
    state = average_graph(state, pairs, tokens, size, forget=far.all())
    near_gap = gap_among_near(far, gap)
    from_top = counts_from_top(evidence.flips)
    slope = slope_at_target(from_top, evidence.flip_want, state.width)
    newton = graph_newton_step(state, near_gap, slope)
    state = next_gain(state, near_gap, newton, size)
    state, surprise = surprise_gain(state, near_gap, noise, far)
    state, gains = step_gains(state, surprise, size, far)
    state = follow_trail(state, near_gap, newton, gains, size, far)
    step = gains * newton
    reach = reach_of_flips(from_top, _degrees(state) * step, _LEEWAY, state.width)
    move, width = quantile_move(from_top, evidence.flip_want, state.width, evidence.flip_slack)
    state, move = trust_flips(state, move, far)
    step = torch.where(far, move, step.clamp(-reach, reach))
    return step, next_bandwidth(state, evidence.experts_per_price)._replace(width=width)


def far_experts(gap: Tensor, want: Tensor, noise: Tensor) -> Tensor:
    """(E,) bool: all of them, where the loads as a whole are far off; else those that are far off
    alone.
    """
    together = gap.square().sum() > torch.maximum(
        _SURE**2 * noise.sum(), _FAR**2 * want.square().sum()
    )
    alone = gap.abs() > torch.maximum(_SURE * noise.sqrt(), _FAR_ALONE * want)
    return together | alone


def gap_among_near(far: Tensor, gap: Tensor) -> Tensor:
    """The gaps of the near experts, centred so that they can be closed among themselves."""
    near = ~far
    mean = (gap * near).sum() / near.sum().clamp_min(1)
    return torch.where(near, gap - mean, 0.0)


def _batch_size(state: CurvatureState, tokens: Tensor) -> tuple[CurvatureState, Tensor]:
    """How large this batch is against the usual one: its weight as evidence."""
    usual = usual_size(state.usual_tokens, tokens)
    return remember(state, usual_tokens=usual), tokens / usual


def average_graph(
    state: CurvatureState, pairs: Tensor, tokens: Tensor, size: Tensor, forget: Tensor
) -> CurvatureState:
    """Average w = (W + W^T) / (2 h T), the boundary weights of Proposition 14.

    The graph changes as the shift does, so it is remembered for longer where the gain is small. Far
    away, what was seen before is forgotten: only the latest graph tells how the experts lie there.
    """
    memory = torch.where(forget, 0.0, (1 - state.gain).clamp_min(USUAL_MEMORY))
    both = pairs + pairs.T
    return remember(
        state,
        graph=state.graph * memory + size * both / (2 * state.bandwidth.double() * tokens),
        seen=state.seen * memory + both.sum(1),
        batches=state.batches * memory + size,
    )


def _degrees(state: CurvatureState) -> Tensor:
    """(E,): the share of tokens an expert gains per unit of its own shift, as the graph has it."""
    return state.graph.double().sum(1) / state.batches


def graph_newton_step(state: CurvatureState, gap: Tensor, slope: Tensor) -> Tensor:
    """Solve Laplacian(w) d = gap.

    Few hesitating tokens leave a ragged, perhaps disconnected graph. So each edge is mixed with
    that of the complete graph whose degrees are the histogram's slopes, w_kl = s_k s_l / sum(s):
    all of it without tokens, half where the poorer expert of the two has seen 16.
    """
    graph = state.graph.double() / state.batches
    seen = torch.minimum(state.seen, state.seen.unsqueeze(1)).double()
    prior = _PRIOR / (_PRIOR + seen)
    complete = torch.outer(slope, slope)
    graph = (1 - prior) * graph + prior * complete / slope.sum().clamp_min(LEAST_DIVISOR)
    return solve_laplacian(graph, gap)


def next_bandwidth(state: CurvatureState, experts_per_price: int = 1) -> CurvatureState:
    """Margins are evenly spread near 0, so the share within a bandwidth is proportional to it.

    The share is the graph's, over many batches: of 64 tokens some six hesitate, and two or none by
    chance.
    """
    density = experts_per_price * state.graph.double().sum() / state.batches
    wanted = torch.minimum(_BOUNDARY / density.clamp_min(LEAST_DIVISOR), 16.0 * state.bandwidth)
    return remember(state, bandwidth=wanted.clamp(_LEAST_BANDWIDTH, _MOST_BANDWIDTH))
