"""Regret that happened, and the remark on softmax: holding, caught, and not applying."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.optimum.loop import FixedScores, deepseek_rule
from equipoise.theorems.evidence.hindsights import hindsights_of
from equipoise.theorems.evidence.problems import softmax_scores
from equipoise.theorems.evidence.runs import run_loop
from equipoise.theorems.statements.regret import regret_in_hindsight
from equipoise.theorems.statements.remarks import softmax_keeps_the_choice
from equipoise.theorems.verify import verify
from tests.theorems.cases import lively, recorded


def test_regret_of_a_trace_holds_and_is_said(tmp_path):
    trace = recorded(tmp_path / "t", steps=12)
    verdict = regret_in_hindsight(trace)
    assert verdict.holds
    assert "8 batches lost" in verdict.why
    assert "(layer " in verdict.why


def test_regret_falls_as_the_shift_learns():
    run = lively(steps=400)
    early, late = (
        next(hindsights_of(replace(run, path=run.path._replace(shifts=shifts, loads=loads)))).regret
        for shifts, loads in (
            (run.path.shifts[[0] * 401], run.path.loads[[0] * 401]),
            (run.path.shifts[[400] * 401], run.path.loads[[400] * 401]),
        )
    )
    assert early.dynamic > 10 * late.dynamic >= 0
    # the same scores at every step: both comparators are the same shift
    assert early.fixed == pytest.approx(early.dynamic, abs=1e-9)


def test_loads_that_were_not_those_are_caught(tmp_path):
    (layer, _) = hindsights_of(recorded(tmp_path / "t", steps=4, rule_u=0.05))
    best = layer.found.best_fixed
    # tokens counted where the shift is far above the best one make the linear form too small
    wrong = [np.eye(4, dtype=int)[np.argmin(p - best)] * 40 for p in layer.shifts]
    right = [np.eye(4, dtype=int)[np.argmax(p - best)] * 40 for p in layer.shifts]
    loads = tuple(a + w - r for a, w, r in zip(layer.loads, wrong, right))
    assert regret_in_hindsight(layer).holds
    assert not regret_in_hindsight(replace(layer, loads=loads)).holds


def test_rounding_grows_with_the_numbers_of_a_trace(tmp_path):
    """A float32 shift near 1000 is known to 6e-5, not to what one near 1 is."""
    (layer, _) = hindsights_of(recorded(tmp_path / "t", start=1000.0))
    known_to = float(np.spacing(np.float32(1000)))
    assert known_to <= layer.rounding <= 16 * known_to


def test_unequal_targets_are_the_traces_own(tmp_path):
    (layer, _) = hindsights_of(recorded(tmp_path / "t", steps=4))
    uneven = replace(layer, target=(3.0, 1.0, 1.0, 1.0))
    assert uneven.regret.optimum != pytest.approx(layer.regret.optimum, rel=1e-6)


def test_verify_asks_both(tmp_path):
    names = {each.name: each for each in verify(recorded(tmp_path / "t", steps=2))}
    assert names["17 regret in hindsight"].holds
    assert names["remark: softmax before or after top-K"].applies is False


def softmax_run(steps=3):
    return run_loop(FixedScores(softmax_scores(256, 8, 2), 2), deepseek_rule(1e-2), steps)


def test_softmax_keeps_the_choice():
    verdict = softmax_keeps_the_choice(softmax_run())
    assert verdict.holds
    assert verdict.worst_step == 0
    assert "checked 1 of 3" in verdict.why


def test_a_token_counted_elsewhere_is_caught():
    step = next(iter(softmax_run()))
    moved = step.loads + np.array([3, -3, 0, 0, 0, 0, 0, 0])
    verdict = softmax_keeps_the_choice([replace(step, loads=moved)])
    assert verdict.refuted
    assert verdict.margin == -3


def test_sigmoid_scores_are_no_softmax():
    verdict = softmax_keeps_the_choice(lively(steps=2))
    assert not verdict.applies
    assert "sum to 1" in verdict.why
