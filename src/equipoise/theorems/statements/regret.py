"""Statements 16 and 17: what one step costs, and the regret that adds up to.

The paper bounds E R_N by sigma^2 (1 + ln N) / 2 mu with sigma^2 = T^2 (K - K^2/E), the squared gap
at full collapse. What the steps really meet near p* is the variance there, T K (1 - K/E): smaller
by a factor of about T. So the bound grows with T while the measured regret does not (errata 10).

The experiment, with its local mu, is in evidence/journeys.py. What the proof needs of mu is checked
at the shifts that were visited:

    2 (f(p) - f(p*)) + mu |p - p*|^2 <= 2 <grad f(p), p - p*>
"""

from __future__ import annotations

import numpy as np

from equipoise.optimum.arrays import Floats
from equipoise.storage.renamed import old_names
from equipoise.theorems.evidence.journeys import JOURNEYS, Journey
from equipoise.theorems.registry import statement
from equipoise.theorems.verdict import Slack, require_hypothesis

REGRET_STANDARD_ERRORS = 4.0
"""how far a mean over seeds may miss a bound by chance"""

__getattr__ = old_names(
    __name__,
    {
        "descend": "equipoise.theorems.evidence.journeys:run_descents",
        "project": "equipoise.theorems.evidence.journeys:project_shifts",
    },
)


@statement(16, "one-step accounting", evidence=JOURNEYS)
def one_step(journey: Journey) -> Slack:
    """16. 2 a_n <= (D_n - D_(n+1)) / eps - mu D_n + eps sigma^2, a_n the expected excess, D_n the
    expected squared distance (eq. 37).

    Checked at some steps, as means over seeds with f exact, and with the exact E||g||^2 (13) in
    place of sigma^2, its bound and T times as large near p* (errata 10): the paper's form follows.
    The margin is the right side less the left plus 4 standard errors, relative to eps E||g||^2.
    """
    visited = _require_convexity(journey)
    slacks = []
    for n, (excess, noise) in visited.items():
        eps = 1 / (journey.mu * n)
        before, after = (
            ((journey.shifts[at] - journey.best) ** 2).sum(1)[: excess.size] for at in (n - 1, n)
        )
        rest = (before - after) / eps - journey.mu * before + eps * noise - 2 * excess
        error = REGRET_STANDARD_ERRORS * rest.std(ddof=1) / np.sqrt(rest.size)
        slacks.append(((rest.mean() + error) / (eps * noise.mean()), n))
    slack, n = min(slacks)
    return Slack(float(slack), f"least at n = {n} of {', '.join(str(n) for n in visited)}")


@statement(17, "logarithmic regret", evidence=JOURNEYS)
def logarithmic_regret(journey: Journey) -> Slack:
    """17. E R_N <= sigma^2 (1 + ln N) / 2 mu.

    The margin is the bound less the measured mean plus 4 standard errors, in score.
    """
    return _regret_slack(journey, journey.collapse)


@statement(17, "regret, variance at p*", evidence=JOURNEYS)
def regret_at_best(journey: Journey) -> Slack:
    """17 with the variance at p*, T K (1 - K/E), in place of sigma^2: nearly what the regret is,
    instead of T times that.
    """
    return _regret_slack(journey, journey.variance_at_best)


def _regret_slack(journey: Journey, variance: float) -> Slack:
    _require_convexity(journey)
    mean, error = journey.regret
    bound = journey.bound(variance)
    return Slack(
        bound - mean + REGRET_STANDARD_ERRORS * error,
        f"regret {mean:.3g} +- {error:.2g}, bound {bound:.4g}",
    )


def _require_convexity(journey: Journey) -> dict[int, tuple[Floats, Floats]]:
    """Hypotheses: shifts are in the domain, and mu no greater than the proof allows.

    Gives n -> f(p^n) - f(p*) and E||g||^2 of some seeds.
    """
    require_hypothesis(bool(np.abs(journey.shifts.sum(2)).max() < 1e-9), "shifts do not sum to 0")
    widest = np.ptp(journey.shifts, axis=2).max()
    require_hypothesis(
        bool(widest <= 1 - journey.kappa + 1e-9),
        f"a shift left the domain: its diameter is {widest:.2f}",
    )
    lowest = journey.expected.dual(journey.best)
    visited: dict[int, tuple[Floats, Floats]] = {}
    for n in sorted({1, 2, 3, 10, journey.rounds} & set(range(1, journey.rounds + 1))):
        rows = []
        for shift in journey.shifts[n - 1][:24]:
            point, away = journey.expected.at(shift), shift - journey.best
            over = 2 * (point.dual - lowest) + journey.mu * away @ away - 2 * point.gradient @ away
            require_hypothesis(
                over <= 1e-7 * journey.mu,
                f"mu = {journey.mu:.3g} is more than the curvature between p^{n} and p*",
            )
            rows.append((point.dual - lowest, point.second_moment))
        excess, noise = np.array(rows).T
        visited[n] = excess, noise
    return visited
