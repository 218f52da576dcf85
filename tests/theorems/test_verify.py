"""The whole list: on built-in, recorded and random problems; and the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cli import main
from equipoise.cli.verdict_groups import verdict_summary
from equipoise.cli.verify import verdict_cells
from equipoise.optimum.loop import FixedScores, deepseek_rule, inverse_rule, inverse_sqrt_rule
from equipoise.theorems import verify
from equipoise.theorems.evidence.runs import run_loop
from equipoise.theorems.registry import Setting
from equipoise.theorems.statements import all_statements
from equipoise.theorems.verdict import (
    HypothesisError,
    Slack,
    Verdict,
    judge_evidence,
    require_hypothesis,
)
from equipoise.theorems.verify import GROUPS, NO_BATCH, _Descents, whole_records
from equipoise.trace import Trace, TraceWriter
from tests.theorems.cases import recorded

NAMES = [statement.name for statement in all_statements()]


@pytest.fixture(scope="module")
def builtin():
    return verify()


def test_everything_applies_somewhere_and_holds(builtin):
    assert [verdict.name for verdict in builtin] == NAMES
    numbers = {int(name.split()[0]) for name in NAMES if name[0].isdigit()}
    assert numbers == set(range(1, 18))
    for verdict in builtin:
        assert verdict.applies, verdict
        assert verdict.holds is True, verdict


@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(1, 40),
    experts=st.integers(2, 6),
    top_k=st.integers(1, 6),
    levels=st.sampled_from([3, 50, 2**40]),
    rate=st.sampled_from([1e-5, 1e-3, 1 / 64, 0.3]),
    rule=st.sampled_from([deepseek_rule, inverse_rule, inverse_sqrt_rule]),
)
@settings(max_examples=60, deadline=None)
def test_nothing_is_refuted_by_any_problem(seed, tokens, experts, top_k, levels, rate, rule):
    """Ties, fractional targets, K = E: statements may not apply, but none may fail."""
    scores = np.random.default_rng(seed).integers(1, levels, (tokens, experts)) / levels
    run = run_loop(FixedScores(scores, min(top_k, experts)), rule(rate), 25)
    for statement in all_statements():
        if statement.evidence.setting is Setting.FIXED_SCORES:
            verdict = statement([run])
            assert not verdict.refuted, verdict


def test_trainings(tmp_path):
    found = {
        verdict.name: verdict
        for verdict in verify(recorded(tmp_path / "t", rule_u=0.01, tokens=640))
    }
    assert list(found) == NAMES
    assert not any(verdict.refuted for verdict in found.values()), found
    assert found["8 movements, B_k(p)"].applies
    assert "(layer " in found["8 movements, B_k(p)"].why
    assert found["17 logarithmic regret"].applies


def test_one_flat_batch_does_not_silence_the_regret(tmp_path):
    """The last batch has tokens of one kind: descents are run on an earlier one."""
    trace = recorded(tmp_path / "t", steps=4, tokens=256)
    record = trace.record(1, 3)
    equal = replace(record, scores=np.full_like(record.scores, 0.5))
    earlier = [("0", trace.record(0, step)) for step in (2, 1)]
    assert [each.layer for each in _Descents(2, [("1", equal), *earlier]).journeys] == ["0", "0"]
    with pytest.raises(HypothesisError, match="flat"):
        _ = _Descents(2, [("1", equal)]).journeys


def test_trainings_without_whole_batches(tmp_path):
    with TraceWriter(tmp_path / "t", top_k=1, layers=1) as writer:
        writer.append(0, 0, shift=np.zeros(2), shift_after=np.zeros(2), loads=[1, 1])
    assert {verdict.why for verdict in verify(Trace.open(tmp_path / "t"))} == {NO_BATCH}


def test_groups_are_outside_the_theory(tmp_path):
    trace = recorded(tmp_path / "t")
    trace.about["groups"] = [4, 2]
    assert {verdict.why for verdict in verify(trace)} == {GROUPS}


def test_batches_are_spread_evenly(tmp_path):
    trace = recorded(tmp_path / "t", steps=6)
    assert [(layer, record.step) for layer, record in whole_records(trace, 4)] == [
        ("0", 0),
        ("1", 1),
        ("0", 3),
        ("1", 4),
    ]
    assert len(whole_records(trace, 100)) == 12
    with pytest.raises(ValueError, match="at least 1"):
        whole_records(trace, 0)


def damaged(folder):
    """A training whose shift follows loads that are not those of its choices."""
    recorded(folder, rule_u=0.01, tokens=640)
    trace = Trace.open(folder)
    records = [trace.record(0, step) for step in trace.steps(0)]
    writer = TraceWriter.resume(folder, after=-1)
    for record in records:
        loads = np.roll(record.loads, 1)
        gap = loads.sum() / 4 - loads
        after = (record.shift + np.float32(0.01) * np.sign(gap)).astype(np.float32)
        sizes = np.divide(0.01, np.abs(gap), out=np.zeros(4), where=gap != 0)
        fields = {"shift": record.shift, "shift_after": after, "loads": loads, "step_size": sizes}
        writer.append(record.step, 0, **fields, scores=record.scores, whole=True)
    return folder


def test_the_command_finds_a_damaged_training(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["verify", str(damaged(tmp_path / "t")), "--json"])
    assert stopped.value.code == 1
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["1 change in Lagrangian"]["holds"] is False
    assert found["1 change in Lagrangian"]["margin"] < 0


def test_the_command_prints_a_table(tmp_path, capsys):
    assert main(["verify", str(recorded(tmp_path / "t", rule_u=0.01).folder)]) == 0
    out = capsys.readouterr().out
    assert "17 regret, exact second moments" in out
    assert out.startswith("Nothing is refuted: ")


def test_the_command_prints_json(tmp_path, capsys):
    assert main(["verify", str(recorded(tmp_path / "t").folder), "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert set(verdicts[0]) == {"name", "applies", "holds", "margin", "worst_step", "why"}
    assert len(verdicts) == len(NAMES)


def test_the_command_explains_mistakes(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 2
    assert "is not a trace: there is no trace.json in it" in capsys.readouterr().err


def test_rows_and_summaries():
    fine = Verdict("a", True, True, 0.12345, 3, "x")
    wrong = Verdict("b", True, False, -1.0, 4, "y")
    silent = Verdict("c", False, None, None, None, "z")
    assumed = Verdict("assumption: d", True, False, -1.0, 4, "w")
    assert verdict_cells(fine) == ("a", "yes", "yes", "0.123", "3", "x")
    assert verdict_cells(wrong)[2] == "NO"
    assert verdict_cells(silent) == ("c", "no", "-", "-", "-", "z")
    assert verdict_summary([fine, silent]) == "Nothing is refuted: 1 hold, 1 do not apply."
    assert verdict_summary([fine, wrong, silent]) == (
        "REFUTED: 1 statement; 1 hold, 1 do not apply."
    )
    assert verdict_summary([assumed, fine]) == (
        "Nothing is refuted: 1 hold, 0 do not apply. 1 of 1 assumption do not hold."
    )
    assert [each.refuted for each in (fine, wrong, silent, assumed)] == [False, True, False, False]


class Piece:
    def __init__(self, number):
        self.number = number


def test_judging_keeps_the_worst():
    def check(piece):
        require_hypothesis(piece.number != 1, "a reason of 1.5e-3")
        require_hypothesis(piece.number != 2, "a reason of 7")
        return Slack(float(10 - piece.number), f"note {piece.number}")

    verdict = judge_evidence("name", check, [Piece(n) for n in (5, 1, 8, 2, 3)])
    assert verdict[:5] == ("name", True, True, 2.0, 8)
    assert verdict.why == "note 8; checked 3 of 5; elsewhere: a reason of 1.5e-3"
    assert judge_evidence("name", lambda piece: float("nan"), [Piece(1)]).holds is False
    assert judge_evidence("name", check, []) == Verdict(
        "name", False, None, None, None, "there was nothing to check"
    )
    with pytest.raises(HypothesisError):
        check(Piece(1))
