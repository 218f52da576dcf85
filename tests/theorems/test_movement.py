"""Statements 7 to 11: how many tokens move, and the band the loads end in."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.optimum.loop import FixedScores, LoopPath, deepseek_rule, inverse_rule
from equipoise.theorems.evidence.crowding import (
    least_gap_difference,
    most_in_a_window,
    near_threshold,
)
from equipoise.theorems.evidence.runs import run_loop
from equipoise.theorems.statements import band, movement
from tests.theorems.cases import lively, recorded, scores, settled, step_where

PER_STEP = [movement.like_gaps, movement.crowded_movements, movement.bounded_movements]
WIDTHS = list(band.WIDTHS)


@pytest.fixture(scope="module")
def run():
    return lively()


@pytest.fixture(scope="module")
def calm():
    return settled()


@pytest.mark.parametrize("statement", PER_STEP)
def test_they_hold_on_the_loop(statement, run):
    assert statement(run).holds, statement(run)


@pytest.mark.parametrize("statement", [movement.crowded_movements, movement.bounded_movements])
def test_they_hold_on_a_recorded_training(statement, tmp_path):
    assert statement(recorded(tmp_path / "t", rule_u=0.02)).holds


def test_u_bar_holds_below_and_is_silent_above(run, calm):
    verdict = movement.unique_movements(calm)
    assert verdict.holds, verdict
    assert (
        "u = 5.0e-03 is not below u-bar, which is at most"
        in movement.unique_movements(lively(tokens=256)).why
    )


@pytest.mark.parametrize("statement", PER_STEP)
def test_a_far_token_that_moves_is_caught(statement, run):
    """Two tokens far from the boundary make the swap that another one makes."""
    step = step_where(run, lambda step: step.changed.size > 0)
    (entering, exiting), _ = next(iter(movement.tokens_by_swap(step).items()))
    far = np.argsort(step.shifted[:, entering] - step.shifted[:, exiting])
    far = [i for i in far if step.before[i, exiting] and not step.before[i, entering]][:30]
    after = step.after.copy()
    after[far, entering], after[far, exiting] = True, False
    verdict = statement([replace(step, after=after, loads_after=after.sum(0))])
    assert verdict.applies, verdict.why
    assert verdict.holds is False


def test_two_tokens_in_one_swap_are_caught(calm):
    step = next(iter(calm))
    after = step.after.copy()
    pairs = [(k, m, np.flatnonzero(after[:, k] & ~after[:, m])) for k in range(4) for m in range(4)]
    k, m, tokens = max(pairs, key=lambda pair: len(pair[2]))
    after[tokens[:2], k], after[tokens[:2], m] = False, True
    verdict = movement.unique_movements([replace(step, after=after, loads_after=after.sum(0))])
    assert verdict.holds is False
    assert verdict.margin == -1


@pytest.mark.parametrize("statement", [*PER_STEP, movement.unique_movements])
def test_other_steps_break_hypotheses(statement):
    verdict = statement(run_loop(FixedScores(scores(), 2), inverse_rule(1e-3), 10))
    assert not verdict.applies
    assert "not DeepSeek's step" in verdict.why


def test_dominance():
    gamma = scores()
    pushed = run_loop(
        FixedScores(gamma, 2), deepseek_rule(1e-3), 2, shift=np.array([2.0, 0.0, 0.0, -2.0])
    )
    verdict = movement.dominance(pushed)
    assert verdict.holds
    assert verdict.margin == min(
        (loads[0] - loads[1:3].max()).min() for loads in pushed.path.loads[:2]
    )
    other_router = replace(next(iter(pushed)), loads=np.array([0, 30, 30, 68]))
    assert "the router did something else" in movement.dominance([other_router]).why
    silent = movement.dominance(run_loop(FixedScores(gamma, 2), deepseek_rule(1e-3), 2))
    assert not silent.applies
    assert "no expert dominates" in silent.why


def test_a_skipped_dominant_expert_is_caught():
    step = next(
        iter(
            run_loop(
                FixedScores(scores(), 2),
                deepseek_rule(1e-3),
                2,
                shift=np.array([2.0, 0.0, 0.0, -2.0]),
            )
        )
    )
    before = step.before.copy()
    before[5] = [False, True, False, True]
    assert movement.dominance([replace(step, before=before, loads=before.sum(0))]).holds is False


@pytest.mark.parametrize("width", WIDTHS)
def test_the_band_is_kept(width, calm):
    verdict = band.band_stability(calm, width)
    assert verdict.holds, verdict
    assert "of the target" in verdict.why


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_the_band_is_kept_in_a_recorded_training(width, tmp_path):
    assert band.band_stability(recorded(tmp_path / "t", rule_u=0.02), width).holds


@pytest.mark.parametrize("width", WIDTHS)
def test_leaving_the_band_is_caught(width, calm):
    loads = calm.path.loads.copy()
    loads[700, :2] += [16, -16]
    verdict = band.band_stability(replace(calm, path=LoopPath(calm.path.shifts, loads)), width)
    assert verdict.applies is False or verdict.holds is False
    loads = calm.path.loads.copy()
    # at the end no later step is made from it, so every hypothesis still holds
    loads[-1, :2] += [16, -16]
    verdict = band.band_stability(replace(calm, path=LoopPath(calm.path.shifts, loads)), width)
    assert verdict.holds is False


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_the_band_is_entered(width):
    long = lively(steps=1500, tokens=32, skew=1.5)
    verdict = band.band_entry(long, width)
    assert verdict.holds, verdict
    assert verdict.margin <= band.entry_bound(long, 5e-3)


def test_the_papers_band_is_entered(calm):
    assert band.band_entry(calm).holds


def test_the_papers_band_is_entered_in_time():
    """Four tokens far apart: u-bar is 0.055, and with u = 0.02 the bound is 10 steps."""
    gamma = 0.5 - np.array([[0, 0.40], [0, 0.29], [0, 0.17], [0, 0.06]])
    run = run_loop(FixedScores(gamma, 1), deepseek_rule(0.02), 20)
    assert run.path.loads[0].tolist() == [4, 0]
    verdict = band.band_entry(run)
    assert verdict.holds, verdict
    assert "the bound is 11" in verdict.why
    loads = run.path.loads.copy()
    loads[-1] = [4, 0]
    assert band.band_entry(replace(run, path=LoopPath(run.path.shifts, loads))).holds is False


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_staying_outside_is_caught(width):
    """A run far longer than the bound whose loads are said to be outside at the end."""
    long = lively(steps=1500, tokens=32, skew=1.5)
    loads = long.path.loads.copy()
    loads[-1] = [32, 32, 0, 0]
    verdict = band.band_entry(replace(long, path=LoopPath(long.path.shifts, loads)), width)
    assert verdict.holds is False


def test_short_runs_say_nothing_of_entry(tmp_path):
    short = lively(steps=3, rate=1e-4, skew=2.0)
    assert "end before the bound" in band.band_entry(short, "B_k(p)").why
    assert "one step is not a path" in band.band_entry(recorded(tmp_path / "t"), "B_k(p)").why


def test_entry_starts_where_the_shift_does(run):
    moved = replace(run, path=LoopPath(run.path.shifts + np.array([1.0, 0, 0, 0]), run.path.loads))
    assert band.entry_bound(moved, 5e-3) == pytest.approx(
        band.entry_bound(run, 5e-3) + 3 * 1 / (2 * 5e-3), abs=3
    )


def test_crowding_against_brute_force():
    gamma = scores(tokens=12, experts=3)
    gaps = [gamma[:, k] - gamma[:, m] for k in range(3) for m in range(k)]
    apart = [abs(a - b) for each in gaps for i, a in enumerate(each) for b in each[:i]]
    assert least_gap_difference(gamma) == pytest.approx(min(apart), rel=1e-9)
    for length in (0.01, 0.1, 0.5):
        fullest = max(
            ((each >= low) & (each <= low + length)).sum() for each in gaps for low in each
        )
        assert most_in_a_window(gamma, length) == fullest
    assert least_gap_difference(np.vstack([gamma, gamma[:1]])) == 0.0


def test_one_token_differs_from_no_other():
    assert least_gap_difference(scores(tokens=1, experts=3)) == np.inf


def test_near_threshold_counts_those_that_can_change(run):
    """A token not counted for expert k keeps its choice of k whatever shift within reach comes."""
    step = next(iter(run))
    rng = np.random.default_rng(0)
    counts = near_threshold(step, 0.1)
    for _ in range(50):
        moved = step.scores + step.shift + rng.uniform(-0.05, 0.05, 4)
        after = np.argsort(np.argsort(-moved, 1), 1) < 2
        assert ((after != step.before).sum(0) <= counts).all()
