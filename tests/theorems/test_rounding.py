"""Rounding and ties: they excuse what they can have done, and nothing else."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.optimum.loop import FixedScores, choose_top_k, deepseek_rule
from equipoise.theorems.contradictions import agreement_verdict
from equipoise.theorems.evidence.runs import run_loop, run_of_record
from equipoise.theorems.evidence.ties import ties_explain_loads
from equipoise.theorems.statements import lagrangian
from equipoise.theorems.verdict import slack_of_bound
from equipoise.theorems.verify import whole_records
from equipoise.trace import Trace, TraceWriter
from tests.theorems.cases import lively, moved_wrongly, step_where


def near_balance(folder, seed, tokens, u=1e-3, experts=8, miscount=0, uneven=0.0):
    """One float32 step of DeepSeek's rule near balance; `miscount` tokens are counted wrongly."""
    rng = np.random.default_rng(seed)
    scores = (1 / (1 + np.exp(-rng.normal(size=(tokens, experts))))).astype(np.float32)
    shift = (rng.normal(size=experts) * 1e-3 + uneven * np.arange(experts)).astype(np.float32)
    loads = choose_top_k(scores + shift, 2).sum(0)
    loads[0] -= miscount
    loads[1] += miscount
    gap = 2 * tokens / experts - loads
    after = (shift + np.float32(u) * np.sign(gap).astype(np.float32)).astype(np.float32)
    sizes = np.divide(u, np.abs(gap), out=np.zeros(experts), where=gap != 0)
    with TraceWriter(folder, top_k=2, layers=1) as writer:
        fields = {"shift": shift, "shift_after": after, "loads": loads, "step_size": sizes}
        writer.append(0, 0, **fields, scores=scores, whole=True)
    return Trace.open(folder)


def only_step(trace):
    [step] = run_of_record(trace.record(0, 0), trace)
    return step


def test_honest_float32_batches_are_not_accused_by_statement_5(tmp_path):
    """Errata 22: shifts of one sign move by u up to an ulp apart, and a token may swap."""
    step = only_step(near_balance(tmp_path / "t", 0, tokens=512))
    # a token that prefers k by half of what rounding may do, under shifts of one sign
    k, other = np.flatnonzero(step.sign == step.sign[0])[:2]
    scores = step.scores.copy()
    scores[0] = 0.0
    scores[0, [k, other]] = 0.5 - step.shift[[k, other]]
    scores[0, k] += step.tiny / 2
    best = (step.sign != step.sign[0]).argmax()
    scores[0, best] = 0.9
    after = choose_top_k(scores + step.shift_after, 2)
    after[0] = False
    after[0, [best, other]] = True
    honest = replace(step, scores=scores, before=choose_top_k(scores + step.shift, 2), after=after)
    assert (honest.before[0, k], honest.after[0, k], 0 in honest.changed) == (True, False, True)
    assert lagrangian.assignment_changes([honest]).holds
    far = scores.copy()
    far[0, k] += 10 * step.tiny
    assert lagrangian.assignment_changes([replace(honest, scores=far)]).holds is False


def test_a_wrong_swap_beyond_rounding_is_still_caught(tmp_path):
    step = only_step(near_balance(tmp_path / "t", 0, tokens=4096))
    assert lagrangian.assignment_changes([moved_wrongly(step)]).holds is False


@pytest.mark.parametrize("miscount", [1, 6])
@pytest.mark.parametrize("uneven", [0.0, 0.02])
def test_a_miscount_is_told_although_there_are_ties(miscount, uneven, tmp_path):
    """Ties between other experts do not excuse tokens counted on a wrong one."""
    options = {"seed": 0, "tokens": 16_384, "uneven": uneven}
    honest = near_balance(tmp_path / "a", **options)
    assert agreement_verdict(honest, whole_records(honest, 1)) is None
    wrong = near_balance(tmp_path / "b", **options, miscount=miscount)
    verdict = agreement_verdict(wrong, whole_records(wrong, 1))
    assert verdict is not None
    assert f"{2 * miscount} off" in verdict.why
    assert "ties" not in lagrangian.change_in_lagrangian(wrong).why


def brute_force(shifted, top_k, loads, reach):
    """Every way to break ties, tried."""
    ways = []
    for row in shifted:
        ordered = np.sort(row)
        options = [
            np.isin(np.arange(row.size), chosen)
            for chosen in combinations(range(row.size), top_k)
            if (row[list(chosen)] >= ordered[-top_k] - reach).all()
            and all(
                row[k] <= ordered[-top_k - 1] + reach for k in range(row.size) if k not in chosen
            )
        ]
        ways.append(options)
    return any((np.sum(choice, 0) == loads).all() for choice in product(*ways))


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_ties_explain_what_some_way_of_breaking_them_gives(seed, tokens, top_k, moved):
    rng = np.random.default_rng(seed)
    shifted = rng.integers(0, 4, (tokens, 4)) / 4
    noise = rng.random((tokens, 4)) * 1e-3
    loads = choose_top_k(shifted + noise, top_k).sum(0)
    if moved:
        loads = loads + rng.permutation([1, -1, 0, 0])
    found = ties_explain_loads(shifted, top_k, loads, reach=1e-2)
    assert found == brute_force(shifted, top_k, loads, 1e-2)
    if not moved:
        assert found


def test_where_all_experts_are_chosen_there_are_no_ties():
    shifted = np.ones((5, 3))
    assert ties_explain_loads(shifted, 3, np.array([5, 5, 5]), 1e-6)
    assert not ties_explain_loads(shifted, 3, np.array([6, 5, 4]), 1e-6)


def balanced_steps():
    """A balanced problem: nothing is to be moved."""
    scores = np.array([[0.9, 0.1], [0.1, 0.9]])
    return run_loop(FixedScores(scores, 1), deepseek_rule(1e-3), 3)


@pytest.mark.parametrize(
    "statement",
    [
        lagrangian.change_in_lagrangian,
        lagrangian.switching_benefit,
        lagrangian.deepseek_lagrangian,
        lagrangian.monotonicity,
        lagrangian.sandwich,
    ],
)
def test_steps_on_which_nothing_moves_test_nothing(statement):
    verdict = statement(balanced_steps())
    assert not verdict.applies
    assert verdict.why in ("all is balanced and nothing moved", "no token changed its choice")


def test_margins_do_not_contain_the_tolerance():
    assert slack_of_bound(0.3, tolerance=5.0) == 0.3
    assert slack_of_bound(-1.0, tolerance=5.0) == 0.0
    assert slack_of_bound(-6.0, tolerance=5.0) == -1.0
    step = step_where(lively(), lambda step: step.changed.size > 0)
    for statement in (lagrangian.sandwich, lagrangian.deepseek_lagrangian):
        rough = statement([replace(step, rounding=1e-6)])
        assert rough.margin == statement([step]).margin


def test_the_error_of_an_identity_is_told_in_tolerances():
    verdict = lagrangian.change_in_lagrangian(lively(steps=10))
    assert 0 < verdict.margin <= 1
    assert "of what rounding may do" in verdict.why
