"""Statements 16 and 17: what one step costs, and the regret that adds up to.

The paper bounds E R_N by sigma^2 (1 + ln N) / 2 mu with sigma^2 = T^2 (K - K^2/E), the squared gap
at full collapse. What its proof gives is sharper (errata 10), with the exact second moments on the
way in place of sigma^2:

    E R_N <= sum_n eps_n E|A(p^n) - L|^2 / 2             steps 1/(mu n)
    E R_N <= that + max |p - p*|^2 / 2 eps_N             any steps that do not grow, mu = 0

The first rounds cost f(p^1) - f(p*), which grows with T unless the start is the optimum; so regret
is not flat in T. The experiment, with its local mu, is in evidence/journeys.py. What the proof
needs of mu is checked at the shifts that were visited:

    2 (f(p) - f(p*)) + mu |p - p*|^2 <= 2 <grad f(p), p - p*>

"regret in hindsight" is no experiment but what happened: the batches of a training that were kept
whole, and the shifts they were routed by.

With mu = 0 that is convexity, which every dual has; a batch's own (statement 16, per-batch dual) is
checked on trainings, between the shift before an update and the one after it.
"""

from __future__ import annotations

import numpy as np

from equipoise.optimum.arrays import Floats
from equipoise.optimum.hindsight import Regret
from equipoise.storage.renamed import old_names
from equipoise.theorems.evidence.hindsights import HINDSIGHTS, LayerHindsight
from equipoise.theorems.evidence.journeys import JOURNEYS, Journey, mean_and_error
from equipoise.theorems.evidence.runs import STEPS
from equipoise.theorems.evidence.steps import UpdateStep, reduced_dual
from equipoise.theorems.registry import statement
from equipoise.theorems.verdict import Slack, require_hypothesis, slack_of_bound

REGRET_STANDARD_ERRORS = 4.0
"""how far a mean over seeds may miss a bound by chance"""

__getattr__ = old_names(
    __name__,
    {
        "descend": "equipoise.theorems.evidence.journeys:run_descents",
        "project": "equipoise.theorems.evidence.journeys:project_shifts",
    },
)


@statement(16, "per-batch dual is convex", evidence=STEPS, meaning="least slack, in score")
def batch_dual_is_convex(step: UpdateStep) -> float:
    """16 uses that f_n is convex with A - L a subgradient: between the shift before an update and
    the one after it,

        f_n(p') >= f_n(p) + <A(p) - L, p' - p>,     f_n((p + p') / 2) <= (f_n(p) + f_n(p')) / 2

    The margin is the lesser slack, in score.
    """
    require_hypothesis(bool(np.ptp(step.moved) > 4 * step.rounding), "the shift did not move")
    here, there, middle = (
        reduced_dual(step.scores, shift, step.top_k, step.target)
        for shift in (step.shift, step.shift_after, (step.shift + step.shift_after) / 2)
    )
    gap = step.before.sum(0) - step.target
    slack = min(there - here - gap @ step.moved, (here + there) / 2 - middle)
    return slack_of_bound(float(slack), step.tolerance)


@statement(16, "one-step accounting", evidence=JOURNEYS)
def one_step(journey: Journey) -> Slack:
    """16. 2 a_n <= (D_n - D_(n+1)) / eps - mu D_n + eps sigma^2, a_n the expected excess, D_n the
    expected squared distance (eq. 37), for any step sizes; mu = 0 where none is claimed.

    Checked at some steps, as means over seeds with f exact, and with the exact E||g||^2 (13) in
    place of sigma^2, its bound and T times as large near p* (errata 10): the paper's form follows.
    The margin is the right side less the left plus 4 standard errors, relative to eps E||g||^2.
    """
    visited = _require_convexity(journey)
    slacks = []
    for n, (excess, noise) in visited.items():
        eps = journey.step_sizes[n - 1]
        before, after = (
            ((journey.shifts[at] - journey.best) ** 2).sum(1)[: excess.size] for at in (n - 1, n)
        )
        rest = (before - after) / eps - journey.mu * before + eps * noise - 2 * excess
        mean, error = mean_and_error(rest)
        slacks.append(((mean + REGRET_STANDARD_ERRORS * error) / (eps * noise.mean()), n))
    slack, n = min(slacks)
    return Slack(float(slack), f"least at n = {n} of {', '.join(str(n) for n in visited)}")


@statement(17, "logarithmic regret", evidence=JOURNEYS)
def logarithmic_regret(journey: Journey) -> Slack:
    """17. E R_N <= sigma^2 (1 + ln N) / 2 mu.

    The margin is the bound less the measured mean plus 4 standard errors, in score.
    """
    _require_inverse_steps(journey)
    bound = journey.collapse * (1 + np.log(journey.rounds)) / (2 * journey.mu)
    return _regret_slack(journey, np.full(journey.regrets.shape[1], bound))


@statement(17, "regret, exact second moments", evidence=JOURNEYS)
def regret_by_moments(journey: Journey) -> Slack:
    """17 as its proof gives it: E R_N <= sum_n eps_n E||g(p^n)||^2 / 2 (errata 10).

    The second moments are those of the loads that were met: their mean given p^n is the exact one.
    The margin is the mean over seeds of bound less regret, plus 4 standard errors, in score.
    """
    _require_inverse_steps(journey)
    return _regret_slack(journey, journey.step_costs)


@statement(17, "regret, no strong convexity", evidence=JOURNEYS)
def regret_of_any_steps(journey: Journey) -> Slack:
    """17 without strong convexity, for steps that do not grow:

        E R_N <= max |p - p*|^2 / 2 eps_N + sum_n eps_n E||g||^2 / 2

    With eps_n = u / sqrt(n) that is O(sqrt N).

    The margin is as in the form with exact second moments.
    """
    _require_domain(journey)
    require_hypothesis(bool((np.diff(journey.step_sizes) <= 0).all()), "step sizes grow")
    fixed = journey.greatest_distance / (2 * journey.step_sizes[-1])
    return _regret_slack(journey, journey.step_costs + fixed)


@statement(17, "regret in hindsight", evidence=HINDSIGHTS)
def regret_in_hindsight(layer: LayerHindsight) -> Slack:
    """17's first line, on what happened: the regret against the best shift p^ that stays is at most
    its linear form, and that against each batch's own optimum is never negative,

        sum_n f_n(p^n) - f_n(p^) <= sum_n <A(p^n) - L, p^n - p^>
        sum_n f_n(p^n) >= sum_n f_n(p*_n)

    No hypothesis: both follow from convexity alone. The note says what was lost, as shares of the
    optimum's scores. The margin is the lesser slack, in score.
    """
    regret, best = layer.regret, layer.found.best_fixed
    linear = sum(float(gap @ (shift - best)) for gap, shift in zip(layer.gaps, layer.shifts))
    moved = sum(float(np.abs(gap).sum()) for gap in layer.gaps)
    tolerance = 1e-10 * abs(regret.optimum) + layer.rounding * (moved + 1)
    slack = slack_of_bound(float(min(linear - regret.fixed, regret.dynamic)), tolerance)
    return Slack(slack, _loss_in_words(regret))


def _loss_in_words(regret: Regret) -> str:
    return (
        f"{regret.batches} batches lost {regret.fixed_share:.2%} against the best shift that "
        f"stays, {regret.dynamic_share:.2%} against each one's own, which moved by "
        f"{regret.path_length:.2g} in all"
    )


def _regret_slack(journey: Journey, bounds: Floats) -> Slack:
    """Mean of bound less regret over seeds, with what chance may do."""
    left, error = mean_and_error(bounds - journey.regrets.sum(0))
    mean, spread = journey.regret
    return Slack(
        left + REGRET_STANDARD_ERRORS * error,
        f"regret {mean:.3g} +- {spread:.2g}, bound {bounds.mean():.4g}",
    )


def _require_inverse_steps(journey: Journey) -> None:
    """eps_n = 1 / (mu n), with a mu that the proof allows."""
    require_hypothesis(journey.mu > 0, "no strong convexity is claimed, and steps are not 1/(mu n)")
    inverse = 1 / (journey.mu * np.arange(1, journey.rounds + 1))
    require_hypothesis(bool(np.allclose(journey.step_sizes, inverse)), "steps are not 1/(mu n)")
    _require_convexity(journey)


def _require_domain(journey: Journey) -> None:
    """Hypotheses: shifts and p* lie in the domain that shifts are projected on."""
    require_hypothesis(bool(np.abs(journey.shifts.sum(2)).max() < 1e-9), "shifts do not sum to 0")
    widest, allowed = np.ptp(journey.shifts, axis=2).max(), 1 - journey.kappa
    require_hypothesis(
        bool(widest <= allowed + 1e-9),
        f"a shift left the domain: its diameter is {widest:.2f}",
    )
    best = np.ptp(journey.best)
    require_hypothesis(
        bool(best <= allowed + 1e-9),
        f"p* is outside the domain: its diameter {best:.2f} is above {allowed:.2f} (errata 18)",
    )


def _require_convexity(journey: Journey) -> dict[int, tuple[Floats, Floats]]:
    """Hypotheses: shifts are in the domain, and mu no greater than the proof allows.

    Gives n -> f(p^n) - f(p*) and E||g||^2 of some seeds.
    """
    _require_domain(journey)
    lowest = journey.expected.dual(journey.best)
    rounding = 1e-7 * journey.expected.num_tokens
    visited: dict[int, tuple[Floats, Floats]] = {}
    for n in sorted({1, 2, 3, 10, journey.rounds} & set(range(1, journey.rounds + 1))):
        rows = []
        for shift in journey.shifts[n - 1][:24]:
            point, away = journey.expected.at(shift), shift - journey.best
            over = 2 * (point.dual - lowest) + journey.mu * away @ away - 2 * point.gradient @ away
            require_hypothesis(
                over <= rounding,
                f"mu = {journey.mu:.3g} is more than the curvature between p^{n} and p*",
            )
            rows.append((point.dual - lowest, point.second_moment))
        excess, noise = np.array(rows).T
        visited[n] = excess, noise
    return visited
