"""A trace that cannot be as it says is reported, and `equipoise verify` exits with 1."""

import json

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.cli.verdict_groups import verdict_summary
from equipoise.theorems import verify
from equipoise.theorems.contradictions import AGREEMENT
from equipoise.trace import Trace, TraceWriter
from tests.theorems.cases import recorded, scores

RULE = {"rule_u": 0.01, "tokens": 640}
FIELDS = ("shift", "shift_after", "loads", "step_size", "scores")


def doctored(folder, change, **options):
    """A training's trace in which every record of layer 0 is changed by `change(fields)`."""
    trace = recorded(folder, **(RULE | options))
    records = [trace.record(0, step) for step in trace.steps(0)]
    writer = TraceWriter.resume(folder, after=-1)
    for record in records:
        fields = {name: getattr(record, name).copy() for name in FIELDS}
        change(fields)
        writer.append(record.step, 0, **fields, unit=record.unit, whole=True)
    writer.close()
    return Trace.open(folder)


def noise(fields):
    rng = np.random.default_rng(0)
    fields["shift_after"] += 1e-3 * rng.normal(size=4).astype(np.float32)


DAMAGES = {
    "shift is not finite": lambda fields: fields["shift"].fill(np.nan),
    "shift_after is not finite": lambda fields: fields["shift_after"].fill(np.inf),
    "scores are not finite": lambda fields: fields["scores"][3].fill(np.nan),
    "shift_after is not shift": noise,
    "is not shift . step_size": lambda fields: fields.update(step_size=100 * fields["step_size"]),
    "loads are not those": lambda fields: fields.update(
        loads=np.roll(fields["loads"], 1), step_size=np.full(4, np.nan), shift=fields["shift_after"]
    ),
}


@pytest.mark.parametrize("why", DAMAGES)
def test_damage_is_reported(tmp_path, capsys, why):
    trace = doctored(tmp_path / "t", DAMAGES[why])
    first = verify(trace)[0]
    assert first[:3] == (AGREEMENT, True, False)
    assert why.replace(" . ", " + ") in first.why
    assert "3 records contradict themselves" in first.why
    with pytest.raises(SystemExit) as stopped:
        main(["verify", str(trace.folder), "--json"])
    assert stopped.value.code == 1
    assert json.loads(capsys.readouterr().out)[0]["holds"] is False


def test_rolled_loads_are_reported(tmp_path):
    trace = doctored(
        tmp_path / "t", lambda fields: fields.update(loads=np.roll(fields["loads"], 1))
    )
    assert verify(trace)[0].name == AGREEMENT


def test_a_trace_without_records_is_damaged(tmp_path, capsys):
    TraceWriter(tmp_path / "t", top_k=1, layers=2).close()
    with pytest.raises(SystemExit) as stopped:
        main(["verify", str(tmp_path / "t")])
    assert stopped.value.code == 1
    out = capsys.readouterr().out
    assert "it holds no record of any step" in out
    assert out.startswith("The trace is DAMAGED: it contradicts itself. Nothing was checked")
    assert "Nothing is refuted" not in out


def test_what_a_rule_may_do_is_no_damage(tmp_path):
    def centre(fields):
        fields["shift_after"] += np.float32(0.25)

    def no_step_size(fields):
        fields["step_size"][:] = np.nan
        fields["shift_after"] *= 1.1

    def solved_by_the_batch(fields):
        fields["step_size"][:] = np.nan
        fields["shift"][:] = fields["shift_after"][:] = 0
        fields["loads"] = np.full(4, fields["loads"].sum() // 4)

    for n, change in enumerate((lambda fields: None, centre, no_step_size, solved_by_the_batch)):
        trace = doctored(tmp_path / f"{n}", change)
        assert AGREEMENT not in {verdict.name for verdict in verify(trace)}, n


@pytest.mark.parametrize("unit", ["counts", "tokens", "relative"])
def test_units_and_targets_are_counted_in(tmp_path, unit):
    tokens, target = 640, np.array([1.0, 2.0, 3.0, 2.0])
    wanted = 2 * tokens * target / target.sum()
    batch = scores(tokens=tokens).astype(np.float32)
    shift = np.zeros(4, np.float32)
    loads = (np.argsort(np.argsort(-batch, 1), 1) < 2).sum(0)
    gap = (wanted - loads) * {"counts": 1.0, "tokens": 1 / tokens, "relative": 1 / wanted}[unit]
    for name, size in (("right", 1.0), ("wrong", 1.01)):
        with TraceWriter(tmp_path / name, top_k=2, layers=1, target=target.tolist()) as writer:
            after = (shift + size * 1e-3 * gap).astype(np.float32)
            writer.append(0, 0, shift=shift, shift_after=after, loads=loads, step_size=1e-3,
                          unit=unit, scores=batch, whole=True)  # fmt: skip
    assert verify(Trace.open(tmp_path / "right"))[0].name != AGREEMENT
    assert verify(Trace.open(tmp_path / "wrong"))[0].name == AGREEMENT


@pytest.mark.parametrize("keep_bits", [7, 10])
def test_a_router_in_half_precision_may_see_other_ties(tmp_path, keep_bits):
    """Scores of bfloat16 or float16, and sums rounded to it: float32 would choose otherwise."""
    mask = np.uint32(0xFFFFFFFF << (23 - keep_bits) & 0xFFFFFFFF)

    def rounded(values):
        return (np.asarray(values, np.float32).view(np.uint32) & mask).view(np.float32)

    def half(fields):
        fields["scores"] = rounded(fields["scores"])
        fields["shift"] = np.array([0.013, -0.007, 0.004, -0.01], np.float32)
        order = np.argsort(-rounded(fields["scores"] + fields["shift"]), 1, kind="stable")
        fields["loads"] = np.bincount(order[:, :2].ravel(), minlength=4)
        fields["step_size"] = np.full(4, np.nan)

    assert verify(doctored(tmp_path / "t", half))[0].name != AGREEMENT


@pytest.mark.parametrize("keep_bits", [7, 10])
def test_half_precision_does_not_excuse_loads_of_other_scores(tmp_path, keep_bits):
    """What rounding to bfloat16 or float16 explains is small: not that tokens took their worst."""
    mask = np.uint32(0xFFFFFFFF << (23 - keep_bits) & 0xFFFFFFFF)

    def worst(fields):
        scores = (np.asarray(fields["scores"], np.float32).view(np.uint32) & mask).view(np.float32)
        fields["scores"] = scores
        fields["shift"] = np.array([0.5, 0.25, -0.25, -0.5], np.float32)
        order = np.argsort(scores + fields["shift"], 1)
        fields["loads"] = np.bincount(order[:, :2].ravel(), minlength=4)
        fields["step_size"] = np.full(4, np.nan)

    found = verify(doctored(tmp_path / "t", worst))[0]
    assert found.name == AGREEMENT
    assert "its loads are not those of its scores and shift" in found.why


def test_nothing_is_said_of_nothing():
    assert verdict_summary([]) == "Nothing was checked: none of 0 statements applies."


def test_the_table_fits_eighty_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    trace = recorded(tmp_path / "t", **RULE)
    assert main(["verify", str(trace.folder), "--details"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, [lines[0], *lines[2:]])) <= 80
    [row] = [line for line in lines if line.startswith("1 change in Lagrangian ")]
    assert row.split()[4:6] == ["yes", "yes"]
    below = lines[lines.index(row) + 1]
    assert below.startswith("    error ")
    # a line for the statement, and at most three for its why
    assert len(lines) < 4 * 26
