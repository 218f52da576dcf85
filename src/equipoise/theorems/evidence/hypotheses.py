"""Hypotheses about one update on fixed scores; each raises HypothesisError where it does not hold.

Routing does not see a constant added to every shift, nor does the Lagrangian (loads and targets
have the same sum), so a rule that centres its step is the same rule here: hypotheses about the
update are checked up to a constant.
"""

from __future__ import annotations

import numpy as np

from equipoise.theorems.evidence.crowding import least_gap_difference
from equipoise.theorems.evidence.steps import UpdateStep, threshold_margins
from equipoise.theorems.verdict import require_hypothesis


def require_known_choices(step: UpdateStep) -> None:
    """The choices are top-K (eq. 8). Ties that a router broke otherwise leave them unknown.

    Loads that no tie explains are a miscount, which is told: statements that use them will fail.
    """
    require_hypothesis(
        not step.ties_broken_otherwise,
        "the router broke ties otherwise than by the lowest index, so the choices are not known",
    )


def require_dual_update(step: UpdateStep) -> None:
    """The shift moved by step_size (L - A) (eq. 7), up to a constant."""
    require_known_choices(step)
    require_hypothesis(
        bool(np.isfinite(step.step_size).all()),
        "the rule has no step sizes, so its update is not the paper's",
    )
    far = np.ptp(step.moved - step.step_size * step.gap)
    require_hypothesis(
        bool(far <= 4 * step.rounding),
        f"the shift did not move by step size times gap: off by up to {far:.1e}",
    )


def deepseek_rate(step: UpdateStep) -> float:
    """The shift moved by u sign(L - A) (eqs. 3 and 10), up to a constant.

    Gives u, 0 in perfect balance.
    """
    require_known_choices(step)
    if not step.gap.any():
        require_hypothesis(
            bool(np.ptp(step.moved) <= 4 * step.rounding),
            "not DeepSeek's step: all is balanced, and the shift moved",
        )
        return 0.0
    require_hypothesis(
        bool((step.sign > 0).any() and (step.sign < 0).any()),
        "loads do not sum to what the targets do",
    )
    require_hypothesis(bool(step.moved.any()), "not DeepSeek's step: the shift did not move")
    up, down = step.moved[step.sign > 0].mean(), step.moved[step.sign < 0].mean()
    u, constant = (up - down) / 2, (up + down) / 2
    off = np.abs(step.moved - u * step.sign - constant).max()
    require_hypothesis(
        bool(off <= 4 * step.rounding < u),
        f"not DeepSeek's step: shifts moved by {step.moved.min():.1e} to "
        f"{step.moved.max():.1e}, not all by one u",
    )
    return float(u)


def require_movement(step: UpdateStep) -> None:
    """Something moved: where all is balanced, and the shift stays, nothing is tested."""
    require_hypothesis(
        bool(step.gap.any() or step.changed.size), "all is balanced and nothing moved"
    )


def require_no_ties(step: UpdateStep) -> None:
    """No ties in shifted scores at n and n+1 (errata 3).

    The proofs use less, and less is asked: none between an expert that is chosen and one that is
    not.
    """
    least = min(step.margins.min(), threshold_margins(step.shifted_after, step.top_k).min())
    require_hypothesis(bool(least > 0), "a token's K-th and (K+1)-th shifted scores are equal")


def require_below_u_bar(step: UpdateStep) -> float:
    """0 < u < u-bar, half the least difference of two tokens' gaps. Gives u."""
    u = deepseek_rate(step)
    require_no_ties(step)
    least = least_gap_difference(step.scores, enough=2 * u + 2 * step.tiny)
    require_hypothesis(
        2 * u + 2 * step.tiny < least,
        f"u = {u:.1e} is not below u-bar, which is at most {least / 2:.1e}",
    )
    return u
