"""Statements 12 to 15: the load gap as a stochastic gradient, its variance, the curvature, and the
zero-sum space.

Margins of 12 and 13 are in standard errors (5 less the worst), of 14 relative, of 15 in tokens or
score.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.expected.dual import Expected, laplacian, least_weight
from equipoise.expected.laws import Histogram
from equipoise.optimum.loop import Array, choose
from equipoise.theorems.evidence.draws import Draws, Sampled, draws_of
from equipoise.theorems.evidence.program import Source, Step, steps_of
from equipoise.theorems.verdict import Slack, Verdict, judge, require

STANDARD_ERRORS = 5.0


def unbiased_gradient(source: Sampled) -> Verdict:
    """12. E[A - L] = T pi(p) - L: mean loads are T times the exact selection probabilities.

    The margin is 5 standard errors less the worst expert's.
    """
    return judge("12 unbiased gradient", _unbiased, draws_of(source))


def _unbiased(draws: Draws) -> Slack:
    draws.require_independence()
    T, pi = draws.expected.num_tokens, draws.point.selection_probability
    spread = np.sqrt(np.maximum(T * pi * (1 - pi), 1e-12) / len(draws.loads))
    worst = float((np.abs(draws.loads.mean(0) - T * pi) / spread).max())
    return Slack(STANDARD_ERRORS - worst, f"worst expert {worst:.1f} standard errors off")


def gradient_variance(source: Sampled) -> Verdict:
    """13. E||g - E g||^2 = T (K - sum pi^2), E||g||^2 = that + T^2 (sum pi^2 - K^2/E), and never
    ||g||^2 > T^2 (K - K^2/E).

    (errata 5: in the proof it is T pi - A.) The margin is 5 standard errors less the worse of the
    two.
    """
    return judge("13 variance and second moment", _variance, draws_of(source))


def _variance(draws: Draws) -> Slack:
    draws.require_independence()
    require(len(draws.loads) >= 8, f"{len(draws.loads)} batches are too few for a variance")
    expected, point = draws.expected, draws.point
    T, K, E = expected.num_tokens, expected.top_k, expected.law.num_experts
    squares = ((draws.loads - expected.target_load) ** 2).sum(1)
    around = ((draws.loads - T * point.selection_probability) ** 2).sum(1)
    worst = max(_errors_off(around, point.variance), _errors_off(squares, point.second_moment))
    if squares.max() > T * T * (K - K * K / E) * (1 + 1e-12):
        return Slack(-float(squares.max()), "a gradient longer than full collapse gives")
    return Slack(
        STANDARD_ERRORS - worst, f"variance {around.mean():.4g}, predicted {point.variance:.4g}"
    )


def _errors_off(sample: Array, predicted: float) -> float:
    return float(
        abs(sample.mean() - predicted) / max(sample.std(ddof=1) / np.sqrt(len(sample)), 1e-12)
    )


@dataclass(frozen=True)
class Curvature:
    """Boundary weights of a law at a shift."""

    expected: Expected
    shift: Array
    weight: Array
    dependence: str = ""
    number: int = 0

    @cached_property
    def modulus(self) -> float:
        """T lambda_2."""
        return self.expected.num_tokens * float(np.linalg.eigvalsh(laplacian(self.weight))[1])


Curved = Curvature | Sampled | Iterable[Curvature]


def curvature(expected: Expected, shift: Array) -> Curvature:
    """The exact one."""
    return Curvature(expected, np.asarray(shift, np.float64), expected.boundary_weight(shift))


def _curvatures(source: Curved) -> Iterable[Curvature]:
    pieces = [source] if isinstance(source, Curvature) else source
    if isinstance(pieces, list) and all(isinstance(piece, Curvature) for piece in pieces):
        yield from pieces
        return
    for draws in draws_of(pieces):  # type: ignore[arg-type]
        weight = (
            np.zeros((draws.shift.size,) * 2) if draws.dependence else draws.point.boundary_weight
        )
        yield Curvature(draws.expected, draws.shift, weight, draws.dependence, draws.number)


def second_derivative(source: Curved) -> Verdict:
    """14. D^2 F(p)[d, d] = sum_{k<l} w_kl (d_k - d_l)^2, against central differences of pi along
    some directions.

    The margin is the tolerance less the worst relative error.
    """
    return judge("14 second derivative", _second, _curvatures(source))


def _second(piece: Curvature) -> Slack:
    require(not piece.dependence, piece.dependence)
    dice, E = np.random.default_rng(0), piece.shift.size
    rough = isinstance(
        piece.expected.law, Histogram
    )  # pi has a corner at every bin's edge: wider steps, wider tolerance
    h, tolerance, directions = (1e-2, 0.1, 1) if rough else (1e-4, 1e-3, 4)
    errors = []
    for direction in dice.normal(size=(directions, E)) / np.sqrt(E):
        ahead, behind = (piece.expected.at(piece.shift + sign * h * direction) for sign in (1, -1))
        measured = (
            direction @ (ahead.selection_probability - behind.selection_probability) / (2 * h)
        )
        predicted = direction @ laplacian(piece.weight) @ direction
        errors.append(abs(measured - predicted) / max(abs(predicted), abs(measured), 1e-300))
    return Slack(tolerance - max(errors), f"worst relative error {max(errors):.1e}")


def strong_convexity(source: Curved) -> Verdict:
    """14, sec. 5.5: on sum p = 0 the expected dual curves by at least mu_K = T E c_K > 0; exactly
    by T lambda_2 at p.

    Checked: T lambda_2 >= T E min w(p) > 0, and min w(p) is at least c_K by definition. The margin
        is relative. Both moduli are
    reported: c_K is an infimum over all shifts of p's diameter, and astronomically small (errata
        9).
    """
    return judge("14 strong convexity", _convex, _curvatures(source))


def _convex(piece: Curvature) -> Slack:
    require(not piece.dependence, piece.dependence)
    E, K, T = piece.shift.size, piece.expected.top_k, piece.expected.num_tokens
    require(K < E, "K = E: every weight is 0 and nothing is strongly convex (errata 4)")
    require(
        bool(np.ptp(piece.shift) < 1),
        f"the shift's diameter {np.ptp(piece.shift):.2f} is not below 1",
    )
    least = piece.weight[~np.eye(E, dtype=bool)].min()
    note = f"modulus T lambda_2 = {piece.modulus:.3g}; T E min w = {T * E * least:.3g}"
    if E <= 16 and not isinstance(piece.expected.law, Histogram):
        note += (
            "; the paper's T E c_K = "
            f"{T * E * least_weight(piece.expected.law, K, 1 - np.ptp(piece.shift)):.3g}"
        )
    symmetric = np.abs(piece.weight - piece.weight.T).max()
    slack = (piece.modulus - T * E * least) / max(piece.modulus, 1e-300)
    return Slack(-1.0 if least <= 0 or symmetric > 1e-12 else slack + 1e-9, note)


def zero_sum_projection(source: Source) -> Verdict:
    """15. Gaps sum to 0; so one step size for all keeps the sum of the shift; and centring a shift
    changes no choice.

    The margin is 0 less the tokens the gaps are short of 0, or less the tokens that centring
    reroutes beyond rounding (errata 14), or the rounding allowed less the drift of the sum.
    """
    return judge("15 zero-sum projection", _zero_sum, steps_of(source))


def _zero_sum(step: Step) -> Slack:
    require(bool((step.before.sum(1) == step.top_k).all()), "not every token takes K experts")
    short = abs(step.gap.sum())
    if short > 1e-9 * step.target.sum():
        return Slack(-float(short), f"loads are {short:.3g} off K T")
    centred = choose(step.scores + (step.shift - step.shift.mean()), step.top_k)
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
