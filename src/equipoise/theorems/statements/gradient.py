"""Statements 12 to 15: the load gap as a stochastic gradient, its variance, the curvature, and the
zero-sum space.

12, 13 and the sampled form of 14 are about any joint law over experts (errata 19): laws, and the
tokens of a recorded batch. The other forms of 14 need a law's density. Margins of 12 and 13 are in
standard errors (5 less the worst), of 14 relative, of 15 in tokens or score.
"""

from __future__ import annotations

import numpy as np

from equipoise.expected.dual import attained_least_weight, certified_least_weight, laplacian
from equipoise.expected.laws import Histogram
from equipoise.optimum.arrays import Floats
from equipoise.optimum.loop import choose_top_k
from equipoise.theorems.evidence.curvatures import CURVATURES, Curvature
from equipoise.theorems.evidence.draws import DRAWS, Draws
from equipoise.theorems.evidence.hypotheses import deepseek_rate
from equipoise.theorems.evidence.runs import STEPS
from equipoise.theorems.evidence.steps import UpdateStep
from equipoise.theorems.registry import statement
from equipoise.theorems.verdict import (
    Slack,
    require_hypothesis,
    slack_of_bound,
    slack_of_identity,
)

GRADIENT_STANDARD_ERRORS = 5.0
"""how far a mean over drawn batches may be off by chance: the worst of many experts is taken"""


@statement(12, "unbiased gradient", evidence=DRAWS)
def unbiased_gradient(draws: Draws) -> Slack:
    """12. E[A - L] = T pi(p) - L: mean loads are T times the selection probabilities, exact ones or
    those of held-out tokens.

    The margin is 5 standard errors less the worst expert's.
    """
    draws.require_draws()
    T, pi = draws.num_tokens, draws.selection_probability
    # one token's, by all tokens: a rare expert may be missing among those held out
    drawn = T * len(draws.loads)
    known = np.isinf(draws.held_out)
    share = pi if known else (draws.held_out * pi + draws.loads.sum(0)) / (draws.held_out + drawn)
    spread = np.maximum(share * (1 - share), 1e-12)
    error = T * np.sqrt(spread * (1 / drawn + 1 / draws.held_out))
    worst = float((np.abs(draws.loads.mean(0) - T * pi) / error).max())
    return Slack(GRADIENT_STANDARD_ERRORS - worst, f"worst expert {worst:.1f} standard errors off")


@statement(13, "variance and second moment", evidence=DRAWS)
def gradient_variance(draws: Draws) -> Slack:
    """13. Of the gradient g = A - L of independent tokens:

        E||g - E g||^2 = T (K - sum pi^2)
        E||g||^2       = that + T^2 (sum pi^2 - K^2/E)
        ||g||^2       <= T^2 (K - K^2/E), always

    (errata 5: in the proof it is T pi - A.) The second is checked where pi is exact; elsewhere it
    follows from the first and 12. The margin is 5 standard errors less the worse of the two.
    """
    draws.require_draws()
    few = f"{len(draws.loads)} batches are too few for a variance"
    require_hypothesis(len(draws.loads) >= 8, few)
    T, K, E = draws.num_tokens, draws.top_k, draws.shift.size
    squares = ((draws.loads - K * T / E) ** 2).sum(1)
    if squares.max() > T * T * (K - K * K / E) * (1 + 1e-12):
        return Slack(-float(squares.max()), "a gradient longer than full collapse gives")
    around = ((draws.loads - draws.loads.mean(0)) ** 2).sum(1)
    around *= len(around) / (len(around) - 1)
    predicted, own = _predicted_variance(draws)
    worst = _errors_off(around, predicted, own)
    if np.isinf(draws.held_out):
        worst = max(worst, _errors_off(squares, draws.second_moment, 0.0))
    note = f"variance {around.mean():.4g}, predicted {predicted:.4g}"
    return Slack(GRADIENT_STANDARD_ERRORS - worst, note)


def _predicted_variance(draws: Draws) -> tuple[float, float]:
    """T (K - sum pi^2) and its standard error. Held-out shares have a variance of their own, which
    is in their squares.
    """
    predicted = draws.variance / (1 - 1 / draws.held_out)
    if np.isinf(draws.held_out):
        return predicted, 0.0
    # a token adds 2 pi x to sum pi^2; where nearly all choose alike, one that does not is seen here
    own = 2 * choose_top_k(draws.shifted, draws.top_k) @ draws.selection_probability
    return predicted, float(draws.num_tokens * own.std() / np.sqrt(draws.held_out))


def _errors_off(sample: Floats, predicted: float, own: float) -> float:
    """By how many standard errors a sample's mean misses a prediction with an error of its own."""
    error = max(np.hypot(sample.std(ddof=1) / np.sqrt(len(sample)), own), 1e-12)
    return float(abs(sample.mean() - predicted) / error)


@statement(14, "second derivative", evidence=CURVATURES)
def second_derivative(piece: Curvature) -> Slack:
    """14. D^2 F(p)[d, d] = sum_{k<l} w_kl (d_k - d_l)^2 (eq. 31), as the exact change of pi along
    some directions d:

        d (pi(p + h d) - pi(p - h d)) = int_{-h}^{h} d Laplacian(w(p + s d)) d ds

    h is a hundredth of the law's own scale (a tenth for histograms). The margin is the tolerance
    less the worst error, relative to the change.
    """
    expected, _ = piece.require_law()
    rough = isinstance(expected.law, Histogram)
    tolerance, h = (0.02, 0.1 * expected.law.scale) if rough else (1e-3, 0.01 * expected.law.scale)
    errors = []
    for direction in _directions(piece.shift.size, 1 if rough else 4):
        ahead, behind = (
            expected.at(piece.shift + sign * h * direction).selection_probability
            for sign in (1, -1)
        )
        measured = direction @ (ahead - behind)
        predicted = piece.curvature_integral(direction, h)
        # what the integrals themselves may be off by
        allowed = 4 * expected.tolerance * np.abs(direction).sum()
        size = max(abs(predicted), abs(measured))
        if size > 100 * allowed:
            errors.append((abs(measured - predicted) - allowed) / size)
    require_hypothesis(
        bool(errors), "experts lie so far apart that the integrals cannot resolve the change of pi"
    )
    return Slack(tolerance - max(errors), f"worst relative error {max(max(errors), 0):.1e}")


@statement(14, "second derivative, sampled loads", evidence=CURVATURES)
def sampled_second_derivative(piece: Curvature) -> Slack:
    """14 for any joint law: the loads of tokens, routed at p - h d and p + h d, change along d by
    2 h T sum_{k<l} w_kl (d_k - d_l)^2 (eq. 31), w the density of ties at the K/(K+1) boundary.

    w is exact where the law is known, else estimated from other tokens. The margin is 5 standard
    errors of both, plus a tenth of the prediction for h that is not 0, less the worst miss, in
    standard errors.
    """
    piece.require_a_choice()
    require_hypothesis(len(piece.tokens) >= 256, "fewer than 256 tokens: too few near a tie")
    _require_near_ties(piece)
    misses = []
    for direction in _directions(piece.shift.size, 4):
        changes = piece.load_changes(direction, piece.reach) / (2 * piece.reach)
        predicted, own = piece.predicted_curvature(direction)
        # one token more or less, for changes so rare that their spread is not seen
        single = np.ptp(direction) ** 2 / (2 * piece.reach) / changes.size
        error = np.sqrt(changes.var() / changes.size + own**2 + single**2)
        miss = max(abs(changes.mean() - predicted) - 0.1 * predicted, 0.0)
        misses.append((miss / error, changes.mean(), predicted))
    worst, measured, predicted = max(misses)
    note = f"curvature along d: loads {measured:.3g}, ties {predicted:.3g}"
    return Slack(float(GRADIENT_STANDARD_ERRORS - worst), note)


def _require_near_ties(piece: Curvature) -> None:
    """Some tokens change their choice when the shift moves a little."""
    require_hypothesis(piece.reach > 0, "many tokens are tied exactly: ties have no density here")
    near = piece.tokens_near_a_tie
    require_hypothesis(near >= 16, f"only {near} tokens are near a tie: experts lie far apart")


def _directions(experts: int, number: int) -> Floats:
    """Zero-sum directions whose largest and least entries are 1 apart."""
    found = np.random.default_rng(0).normal(size=(number, experts))
    found -= found.mean(1, keepdims=True)
    return found / np.ptp(found, axis=1, keepdims=True)


@statement(14, "strong convexity", evidence=CURVATURES)
def strong_convexity(piece: Curvature) -> Slack:
    """14, sec. 5.6: on sum p = 0 the expected dual curves by at least mu_K = T E c_K > 0 (eq. 35);
    exactly by T lambda_2 at p.

    Needs densities that are positive on all of (0, 1) (errata 17), K < E and a shift of diameter
    below 1. Checked: along zero-sum directions the loads of sampled tokens change by at least what
    mu_K asks for, c_K its certified lower bound; and w(p) is symmetric, and nowhere below it. The
    margin is the least of the change that is left over, relative to it. c_K is extremely small
    (errata 9), so all three moduli are reported.
    """
    expected, weight = piece.require_law()
    E, K, T = piece.shift.size, piece.top_k, expected.num_tokens
    piece.require_a_choice()
    require_hypothesis(
        expected.law.positive_density,
        "a density is not positive on all of (0, 1): no strong convexity by this route (errata 17)",
    )
    _require_near_ties(piece)
    diameter = np.ptp(piece.shift) + 2 * piece.reach
    require_hypothesis(bool(diameter < 1), f"the shift's diameter {diameter:.2f} is not below 1")
    certified = certified_least_weight(expected.law, K, 1 - diameter)
    require_hypothesis(certified > 0, "the lower bound of c_K is below the least float64")
    note = (
        f"modulus T lambda_2 {_modulus_text(weight, T)}; T E c_K at least {T * E * certified:.3g}"
    )
    # the search for the least weight takes 2 E integrals: small problems only
    if E <= 16 and not isinstance(expected.law, Histogram):
        attained = attained_least_weight(expected.law, K, 1 - diameter)
        note += f", at most {T * E * attained:.3g}"
    off_diagonal = weight[~np.eye(E, dtype=bool)]
    if np.abs(weight - weight.T).max() > 1e-12 or off_diagonal.min() < certified - 1e-12:
        return Slack(-1.0, f"the weights are not symmetric, or below c_K; {note}")
    return Slack(_least_left_over(piece, E * certified), note)


def _modulus_text(weight: Floats, tokens: int) -> str:
    """T lambda_2, where it is more than the rounding of an eigenvalue."""
    eigenvalues = np.linalg.eigvalsh(laplacian(weight))
    rounding = len(weight) * np.finfo(np.float64).eps * eigenvalues[-1]
    if eigenvalues[1] <= rounding:
        return f"below {tokens * rounding:.1e}"
    return f"= {tokens * eigenvalues[1]:.3g}"


def _least_left_over(piece: Curvature, modulus: float) -> float:
    """d (change of loads) less what the modulus asks for, over d (change of loads): the least over
    some directions, with what chance may do.
    """
    shares = []
    for direction in _directions(piece.shift.size, 4):
        changes = piece.load_changes(direction, piece.reach) / (2 * piece.reach)
        error = GRADIENT_STANDARD_ERRORS * changes.std() / np.sqrt(changes.size)
        left = slack_of_bound(float(changes.mean() - modulus * direction @ direction), error)
        shares.append(left / max(changes.mean(), 1e-300))
    return float(min(shares))


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


@statement(15, "drift of the sign rule's mean", evidence=STEPS)
def mean_drift(step: UpdateStep) -> Slack:
    """15, its other side: DeepSeek's steps share no size, so the mean of the shift moves, by
    u (underloaded - overloaded) / E in each step (errata 14).

    The margin is 1 less error over rounding. Rules that centre their step do not drift.
    """
    u = deepseek_rate(step)
    require_hypothesis(u > 0, "all is balanced and nothing moved")
    # a centred step's mean is 0, whatever the signs
    drift, predicted = float(step.moved.mean()), u * float(step.sign.mean())
    centred = abs(drift) <= 4 * step.rounding < abs(predicted)
    require_hypothesis(not centred, "the rule centres its step, so the mean stays")
    found = slack_of_identity(abs(drift - predicted), 4 * step.rounding)
    return found._replace(note=f"the mean moved by {drift:.2g} in this step; {found.note}")
