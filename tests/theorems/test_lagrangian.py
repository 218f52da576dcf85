"""Statements 1 to 6: they hold, are caught on doctored steps, or do not apply."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.optimum.loop import FixedScores, deepseek_rule, inverse_rule
from equipoise.theorems.evidence.runs import run_loop
from equipoise.theorems.evidence.steps import reduced_dual
from equipoise.theorems.statements import lagrangian as statements
from tests.theorems.cases import (
    lively,
    lone_token,
    moved_wrongly,
    recorded,
    scores,
    step_where,
)

ALL = [
    statements.change_in_lagrangian,
    statements.switching_benefit,
    statements.pairwise_bounds,
    statements.deepseek_lagrangian,
    statements.assignment_changes,
    statements.monotonicity,
    statements.sandwich,
]
DEEPSEEK_ONLY = ALL[2:]


def busy(step):
    return step.changed.size > 0


@pytest.mark.parametrize("statement", ALL)
@pytest.mark.parametrize("rate", [1e-4, 1e-3, 5e-3])
def test_they_hold_on_the_loop(statement, rate):
    verdict = statement(lively(rate=rate))
    assert verdict.applies, verdict.why
    assert verdict.holds
    assert verdict.margin >= 0


@pytest.mark.parametrize("statement", ALL)
def test_they_hold_on_a_recorded_training(statement, tmp_path):
    verdict = statement(recorded(tmp_path / "t", rule_u=0.01, steps=6))
    assert verdict.holds, verdict


@pytest.mark.parametrize(
    "statement", [statements.change_in_lagrangian, statements.deepseek_lagrangian]
)
def test_wrong_loads_are_caught(statement):
    """Loads that are not what was counted, with a shift that moved by them: two experts swap 3
    tokens on paper.
    """
    step = step_where(lively(), lambda step: (np.abs(step.gap) > 4).sum() >= 2)
    first, second = np.argsort(-np.abs(step.gap))[:2]
    loads = step.loads.copy()
    loads[first] += 3
    loads[second] -= 3
    gap = step.target - loads
    sizes = np.divide(5e-3, np.abs(gap), out=np.zeros(4), where=gap != 0)
    verdict = statement(
        [replace(step, loads=loads, step_size=sizes, shift_after=step.shift + sizes * gap)]
    )
    assert verdict.applies, verdict.why
    assert verdict.holds is False
    assert verdict.margin < 0
    assert verdict.worst_step == step.number


@pytest.mark.parametrize(
    "statement",
    [
        statements.switching_benefit,
        statements.pairwise_bounds,
        statements.assignment_changes,
        statements.sandwich,
    ],
)
def test_wrong_movements_are_caught(statement):
    """A token that took an expert it does not want."""
    run = lively()
    honest = step_where(run, busy)
    verdict = statement([honest, moved_wrongly(honest)])
    assert verdict.applies, verdict.why
    assert verdict.holds is False


def test_a_growing_lagrangian_is_caught():
    """Monotonicity: a shift that went the other way, said to have gone the right one."""
    step = step_where(
        lively(rate=1e-4),
        lambda s: (np.sign(s.target - s.loads_after) == s.sign).all() and s.sign.any(),
    )
    assert statements.monotonicity([step]).holds
    loads = (2 * step.target - step.loads).astype(int)  # over- and underloaded exchanged
    backwards = step.shift - 1e-4 * step.sign
    wrong = replace(step, loads=loads, loads_after=loads, shift_after=backwards)
    verdict = statements.monotonicity([wrong])
    assert verdict.applies, verdict.why
    assert verdict.holds is False


def test_unpaired_experts_are_caught():
    step = step_where(lively(), busy)
    after = step.after.copy()
    after[0] = True
    verdict = statements.switching_benefit([replace(step, after=after)])
    assert verdict.holds is False
    assert verdict.margin == -2


def test_a_benefit_that_is_not_the_sum_of_its_pairs_is_caught():
    """Eq. 13: the margin is minus the difference, however large the benefit."""
    step = lone_token([1.0, 1.0, 0.9, 0.95], [-0.1, -0.1, 0.1, 0.1])
    assert statements.switching_benefit([step]).margin == pytest.approx(0.25)
    # the benefit is computed once and kept
    vars(step)["benefit"] = step.benefit + 0.5
    assert statements.switching_benefit([step]).margin == pytest.approx(-0.5)


def test_each_pair_of_a_token_is_bounded():
    """A token that exchanges both experts: one pair is wrong, and its benefit is within bounds."""
    u = 0.1
    worth, moved = np.array([1.0, 1.15, 0.9, 0.95]), np.array([-u, -u, u, u])
    new, old = worth + moved, worth
    pairs = [(a, r) for a in (2, 3) for r in (0, 1)]
    slacks = [new[a] - new[r] for a, r in pairs]
    slacks += [2 * u - (new[a] - new[r]) for a, r in pairs]
    slacks += [2 * u + old[a] - old[r] for a, r in pairs]
    slacks += [old[r] - old[a] for a, r in pairs]
    verdict = statements.pairwise_bounds([lone_token(worth, moved)])
    assert verdict.holds is False
    assert verdict.margin == pytest.approx(min(slacks)) == pytest.approx(-0.05)


@pytest.mark.parametrize("statement", DEEPSEEK_ONLY)
def test_other_step_sizes_are_not_deepseeks(statement):
    run = run_loop(FixedScores(scores(), 2), inverse_rule(1e-3), 20)
    assert statements.change_in_lagrangian(run).holds
    verdict = statement(run)
    assert (verdict.applies, verdict.holds, verdict.margin) == (False, None, None)
    assert "not DeepSeek's step" in verdict.why


@pytest.mark.parametrize("statement", DEEPSEEK_ONLY)
def test_other_updates_are_not_deepseeks(statement):
    step = step_where(lively(), busy)
    verdict = statement([replace(step, shift_after=step.shift_after + np.array([0.1, 0, 0, 0]))])
    assert not verdict.applies
    assert "not DeepSeek's step" in verdict.why
    verdict = statement([replace(step, shift_after=step.shift)])
    assert verdict.why == "not DeepSeek's step: the shift did not move"
    verdict = statement([replace(step, loads=step.target.astype(int))])
    assert "all is balanced, and the shift moved" in verdict.why
    verdict = statement([replace(step, loads=step.target.astype(int) + np.array([5, 0, 0, 0]))])
    assert "loads do not sum to what the targets do" in verdict.why


def test_other_updates_are_not_the_papers():
    step = step_where(lively(), busy)
    verdict = statements.change_in_lagrangian(
        [replace(step, shift_after=step.shift_after + np.array([0.1, 0, 0, 0]))]
    )
    assert not verdict.applies
    assert "did not move by step size times gap" in verdict.why
    assert (
        "no step sizes"
        in statements.change_in_lagrangian([replace(step, step_size=np.full(4, np.nan))]).why
    )


def test_rounded_shifts_are_still_deepseeks(tmp_path):
    """float32 shifts far from 0 move by u only to 6e-8; the step sizes an observer derives from
    them differ a little.
    """
    trace = recorded(tmp_path / "t", rule_u=1e-3, start=0.7)
    for statement in DEEPSEEK_ONLY:
        verdict = statement(trace)
        assert verdict.holds or "changed" in verdict.why, verdict
    assert statements.sandwich(trace).applies


@pytest.mark.parametrize("statement", [s for s in ALL[1:] if s is not statements.sandwich])
def test_ties_break_hypotheses(statement):
    flat = np.round(scores() * 4) / 4
    run = run_loop(FixedScores(flat, 2), deepseek_rule(0.25), 5)
    verdict = statement(run)
    assert not verdict.applies
    assert "K-th and (K+1)-th shifted scores are equal" in verdict.why
    assert statements.sandwich(run).holds
    assert statements.change_in_lagrangian(run).holds


def test_a_constant_changes_nothing():
    """Centred steps are DeepSeek's too: routing and Lagrangian do not see a constant."""
    step = step_where(lively(), busy)
    centred = replace(step, shift_after=step.shift_after - step.shift_after.mean())
    for statement in ALL[:6]:
        if statement is not statements.monotonicity:
            assert statement([centred]).holds, statement([centred])


def test_partial_hypotheses_are_counted():
    verdict = statements.assignment_changes(lively(rate=1e-4))
    assert verdict.holds
    assert "of 150; elsewhere: no token changed its choice" in verdict.why


def test_the_dual_is_the_best_lagrangian():
    """f(p) = max over x of L(x, p), here by trying every choice of two experts for every token."""
    gamma, shift, target = scores(tokens=6), np.array([0.1, -0.2, 0.0, 0.3]), np.full(4, 3.0)
    best = sum(
        max(g[a] + shift[a] + g[b] + shift[b] for a in range(4) for b in range(a)) for g in gamma
    )
    assert reduced_dual(gamma, shift, 2, target) == pytest.approx(best - target @ shift, rel=1e-14)


def test_a_bare_problem_will_do():
    assert statements.sandwich(FixedScores(scores(), 2)).holds
