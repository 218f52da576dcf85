"""A trace is read for a screen, never whole, and followed through resuming."""

import numpy as np
import pytest

from equipoise.results.follow import layer_follower
from equipoise.results.follow.trace_follower import TraceFollower
from equipoise.trace import TraceWriter
from tests.watch.made_runs import E, add_records, new_trace, record_of


def steps_of(follower, layer=0):
    return [row[0] for row in follower.load_rows(layer)]


@pytest.fixture
def trace(tmp_path):
    return TraceFollower(tmp_path)


@pytest.fixture
def loads_counted(monkeypatch):
    """The files that were read."""
    read, load = [], layer_follower.load_columns
    monkeypatch.setattr(
        layer_follower,
        "load_columns",
        lambda path, names: read.append(path.name) or load(path, names),
    )
    return read


def test_records_appear_as_they_are_written(trace, tmp_path):
    assert not trace.poll([0], everything=False)
    writer = new_trace(tmp_path, range(1, 4))
    trace.poll([0], everything=False)
    assert steps_of(trace) == [1, 2, 3]
    add_records(writer, [4])
    trace.poll([0], everything=False)
    assert steps_of(trace) == [1, 2, 3, 4]
    assert steps_of(trace, 1) == []


def test_loads_are_in_hundredths_of_the_target(trace, tmp_path):
    new_trace(tmp_path, [1])
    trace.poll([0], everything=False)
    loads = record_of(1)["loads"]
    assert trace.load_rows(0)[0][1:] == np.rint(100 * loads / loads.mean()).astype(int).tolist()
    assert trace.shift_rows(0)[0][1:] == [pytest.approx(1e-3)] * E


def test_nothing_is_read_twice(trace, tmp_path, loads_counted):
    writer = new_trace(tmp_path, range(1, 120))
    trace.poll([0], everything=False)
    while trace.behind:
        trace.poll([0], everything=False)
    assert len(loads_counted) == 119
    # joined to a chunk of many
    add_records(writer, range(120, 131))
    trace.poll([0], everything=False)
    assert steps_of(trace) == list(range(1, 131))
    assert len(loads_counted) <= 119 + 4


def test_a_long_trace_is_read_for_a_screen(trace, tmp_path, loads_counted, monkeypatch):
    monkeypatch.setattr(layer_follower, "MOST_RECORDS", 4)
    writer = new_trace(tmp_path, range(1, 1025), layers=("a",))
    writer.close()
    trace.poll([0], everything=False)
    assert len(loads_counted) <= 4
    assert 2 <= len(steps_of(trace)) <= 4
    assert steps_of(trace)[-1] >= 512


def test_levels_are_those_of_all_layers(trace, tmp_path):
    new_trace(tmp_path, [1, 2])
    trace.poll([0], everything=True)
    loads = record_of(1)["loads"] / record_of(1)["loads"].mean()
    row = trace.level_rows()[0]
    assert row[3] == pytest.approx(np.abs(loads - 1).mean(), rel=1e-3)
    assert row[6:] == [pytest.approx(loads.max() - 1, rel=1e-3)] * 2


def test_chance_is_what_even_experts_would_have(trace, tmp_path):
    new_trace(tmp_path, [1])
    trace.poll([0], everything=False)
    drawn = np.random.default_rng(0).binomial(64, 2 / E, (20_000, 1)) / 16
    assert trace.chance_level() == pytest.approx(np.abs(drawn - 1).mean(), rel=0.05)


def test_a_resumed_trace_is_read_again(trace, tmp_path):
    new_trace(tmp_path, range(1, 141)).close()
    while trace.poll([0], everything=False) and trace.behind:
        pass
    writer = TraceWriter.resume(tmp_path, after=100)
    other = {**record_of(999), "loads": np.full(E, 16)}
    for step in range(101, 151):
        writer.append(step, "a", **other)
    while trace.poll([0], everything=False) and trace.behind:
        pass
    rows = {row[0]: row[1:] for row in trace.load_rows(0)}
    assert list(rows) == list(range(1, 151))
    assert rows[101] == rows[140] == [100] * E
    assert rows[100] != [100] * E


def test_a_trace_cut_back_is_cut_here_too(trace, tmp_path):
    new_trace(tmp_path, range(1, 21))
    trace.poll([0], everything=False)
    TraceWriter.resume(tmp_path, after=5)
    trace.poll([0], everything=False)
    assert steps_of(trace) == [1, 2, 3, 4, 5]


def test_a_damaged_chunk_is_named_and_the_rest_is_shown(trace, tmp_path):
    new_trace(tmp_path, range(1, 4))
    (tmp_path / "000" / "000000002-000000002.npz").write_bytes(b"PK nonsense")
    trace.poll([0], everything=False)
    assert steps_of(trace) == [1, 3]
    assert "000000002-000000002.npz" in trace.troubles()[0]


def test_a_damaged_header_is_named(trace, tmp_path):
    new_trace(tmp_path, [1])
    (tmp_path / "trace.json").write_text("{")
    trace.poll([0], everything=False)
    assert "trace.json" in trace.troubles()[0]
    assert trace.layers == []
