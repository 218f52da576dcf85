"""The built-in problems are what their names and comments say."""

import numpy as np
import pytest

from equipoise.theorems.evidence.problems import builtin_runs, runs_from_zero, sigmoid_scores


def test_a_sigmoid_gate_prefers_some_experts_a_little():
    """Its logits have standard deviation 1 over tokens, and their means 0.5 over experts."""
    scores = sigmoid_scores(256, 400, seed=0)
    logits = np.log(scores / (1 - scores))
    assert logits.mean(0).std() == pytest.approx(0.5, abs=0.05)
    assert logits.std(0).mean() == pytest.approx(1.0, abs=0.05)


def test_steps_go_towards_balance():
    for number, run in enumerate(builtin_runs()):
        assert (run.step_sizes >= 0).all(), number
        assert run.step_sizes.any(), number


def test_an_expert_dominates_all_and_another_none():
    [pushed] = [run for run in builtin_runs() if run.path.shifts[0].any()]
    loads = pushed.path.loads[0]
    assert (loads[0], loads[-1]) == (len(pushed.scores), 0)


def test_runs_from_zero_are_all_but_the_pushed_one():
    runs = runs_from_zero()
    assert len(runs) == len(builtin_runs()) - 1
    assert not any(run.path.shifts[0].any() for run in runs)
