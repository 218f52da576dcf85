"""Statements 12 to 15: the load gap as a stochastic gradient, its variance, the curvature, and the
zero-sum space.

Margins of 12 and 13 are in standard errors (5 less the worst), of 14 relative, of 15 in tokens or
score.
"""

from __future__ import annotations

import numpy as np

from equipoise.expected.dual import laplacian, least_weight
from equipoise.expected.laws import Histogram
from equipoise.optimum.arrays import Floats
from equipoise.optimum.loop import choose_top_k
from equipoise.theorems.evidence.curvatures import CURVATURES, Curvature
from equipoise.theorems.evidence.draws import DRAWS, Draws
from equipoise.theorems.evidence.runs import STEPS
from equipoise.theorems.evidence.steps import UpdateStep
from equipoise.theorems.registry import statement
from equipoise.theorems.verdict import Slack, require_hypothesis

GRADIENT_STANDARD_ERRORS = 5.0
"""how far a mean over drawn batches may be off by chance: the worst of many experts is taken"""


@statement(12, "unbiased gradient", evidence=DRAWS)
def unbiased_gradient(draws: Draws) -> Slack:
    """12. E[A - L] = T pi(p) - L: mean loads are T times the exact selection probabilities.

    The margin is 5 standard errors less the worst expert's.
    """
    draws.require_independence()
    T, pi = draws.expected.num_tokens, draws.point.selection_probability
    spread = np.sqrt(np.maximum(T * pi * (1 - pi), 1e-12) / len(draws.loads))
    worst = float((np.abs(draws.loads.mean(0) - T * pi) / spread).max())
    return Slack(GRADIENT_STANDARD_ERRORS - worst, f"worst expert {worst:.1f} standard errors off")


@statement(13, "variance and second moment", evidence=DRAWS)
def gradient_variance(draws: Draws) -> Slack:
    """13. Of the gradient g = A - L:

        E||g - E g||^2 = T (K - sum pi^2)
        E||g||^2       = that + T^2 (sum pi^2 - K^2/E)
        ||g||^2       <= T^2 (K - K^2/E), always

    (errata 5: in the proof it is T pi - A.) The margin is 5 standard errors less the worse of the
    first two.
    """
    draws.require_independence()
    few = f"{len(draws.loads)} batches are too few for a variance"
    require_hypothesis(len(draws.loads) >= 8, few)
    expected, point = draws.expected, draws.point
    T, K, E = expected.num_tokens, expected.top_k, expected.law.num_experts
    squares = ((draws.loads - expected.target_load) ** 2).sum(1)
    around = ((draws.loads - T * point.selection_probability) ** 2).sum(1)
    worst = max(_errors_off(around, point.variance), _errors_off(squares, point.second_moment))
    if squares.max() > T * T * (K - K * K / E) * (1 + 1e-12):
        return Slack(-float(squares.max()), "a gradient longer than full collapse gives")
    note = f"variance {around.mean():.4g}, predicted {point.variance:.4g}"
    return Slack(GRADIENT_STANDARD_ERRORS - worst, note)


def _errors_off(sample: Floats, predicted: float) -> float:
    """By how many standard errors a sample's mean misses the prediction."""
    error = max(sample.std(ddof=1) / np.sqrt(len(sample)), 1e-12)
    return float(abs(sample.mean() - predicted) / error)


@statement(14, "second derivative", evidence=CURVATURES)
def second_derivative(piece: Curvature) -> Slack:
    """14. D^2 F(p)[d, d] = sum_{k<l} w_kl (d_k - d_l)^2 (eq. 31), against central differences of pi
    along some directions.

    The margin is the tolerance less the worst relative error.
    """
    require_hypothesis(not piece.dependence, piece.dependence)
    rng, E = np.random.default_rng(0), piece.shift.size
    # a histogram's pi has a corner at every bin's edge: wider steps, wider tolerance
    rough = isinstance(piece.expected.law, Histogram)
    h, tolerance, directions = (1e-2, 0.1, 1) if rough else (1e-4, 1e-3, 4)
    errors = []
    for direction in rng.normal(size=(directions, E)) / np.sqrt(E):
        ahead, behind = (
            piece.expected.at(piece.shift + sign * h * direction).selection_probability
            for sign in (1, -1)
        )
        measured = direction @ (ahead - behind) / (2 * h)
        predicted = direction @ laplacian(piece.weight) @ direction
        errors.append(abs(measured - predicted) / max(abs(predicted), abs(measured), 1e-300))
    return Slack(tolerance - max(errors), f"worst relative error {max(errors):.1e}")


@statement(14, "strong convexity", evidence=CURVATURES)
def strong_convexity(piece: Curvature) -> Slack:
    """14, sec. 5.6: on sum p = 0 the expected dual curves by at least mu_K = T E c_K > 0 (eq. 35);
    exactly by T lambda_2 at p.

    Checked: T lambda_2 >= T E min w(p) > 0, and min w(p) is at least c_K by definition. The margin
    is relative. Both moduli are reported: c_K is an infimum over all shifts of p's diameter, and
    extremely small (errata 9).
    """
    require_hypothesis(not piece.dependence, piece.dependence)
    E, K, T = piece.shift.size, piece.expected.top_k, piece.expected.num_tokens
    require_hypothesis(K < E, "K = E: every weight is 0 and nothing is strongly convex (errata 4)")
    diameter = np.ptp(piece.shift)
    require_hypothesis(bool(diameter < 1), f"the shift's diameter {diameter:.2f} is not below 1")
    least = piece.weight[~np.eye(E, dtype=bool)].min()
    note = f"modulus T lambda_2 = {piece.modulus:.3g}; T E min w = {T * E * least:.3g}"
    # the search for c_K takes 2 E integrals: small problems only
    if E <= 16 and not isinstance(piece.expected.law, Histogram):
        paper = T * E * least_weight(piece.expected.law, K, 1 - diameter)
        note += f"; the paper's T E c_K = {paper:.3g}"
    symmetric = np.abs(piece.weight - piece.weight.T).max()
    slack = (piece.modulus - T * E * least) / max(piece.modulus, 1e-300)
    return Slack(-1.0 if least <= 0 or symmetric > 1e-12 else slack + 1e-9, note)


@statement(15, "zero-sum projection", evidence=STEPS)
def zero_sum_projection(step: UpdateStep) -> Slack:
    """15. Gaps sum to 0; so one step size for all keeps the sum of the shift; and centring a shift
    changes no choice.

    The margin is 0 less the tokens the gaps are short of 0, or less the tokens that centring
    reroutes beyond rounding (errata 14), or the rounding allowed less the drift of the sum.
    """
    require_hypothesis(
        bool((step.before.sum(1) == step.top_k).all()), "not every token takes K experts"
    )
    short = abs(step.gap.sum())
    if short > 1e-9 * step.target.sum():
        return Slack(-float(short), f"loads are {short:.3g} off K T")
    centred = choose_top_k(step.scores + (step.shift - step.shift.mean()), step.top_k)
    rerouted = int(((centred != step.before).any(1) & (step.margins > step.tiny)).sum())
    if rerouted:
        return Slack(-float(rerouted), f"centring rerouted {rerouted} tokens")
    sizes = step.step_size[step.gap != 0]
    if sizes.size and not np.ptp(sizes) <= 1e-9 * np.abs(sizes).max():
        return Slack(
            0.0,
            "experts share no step size, so the sum of the shift may drift; centring changes no "
            "choice",
        )
    drift = abs((step.shift_after - step.shift).sum())
    return Slack(float(step.shift.size * 4 * step.rounding - drift), "the sum of the shift is kept")
