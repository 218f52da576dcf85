"""What is appended is read back, whatever happens to the process in between."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from equipoise.trace import Trace, TraceError, TraceWriter
from tests.trace.tools import E, K, step_of, written


def assert_same(record, n, layer):
    expected = step_of(2 * n + layer, rows=n % 3)
    assert record.unit == expected.pop("unit")
    for name, array in expected.items():
        np.testing.assert_array_equal(getattr(record, name), array)
        assert getattr(record, name).dtype == np.asarray(array).dtype


def test_records_come_back(tmp_path):
    written(tmp_path / "t", range(300), about={"gate": "sigmoid"}, target=[1, 1, 2, 2]).close()
    trace = Trace.open(tmp_path / "t")
    assert (trace.layers, trace.top_k, trace.about, trace.target) == (
        ("a", "b"),
        K,
        {"gate": "sigmoid"},
        (1, 1, 2, 2),
    )
    assert trace.steps("b") == trace.steps(1) == list(range(300))
    for n in (0, 127, 128, 255, 256, 299, 1):
        for layer in (0, 1):
            assert_same(trace.record(layer, n), n, layer)


def test_files_stay_few(tmp_path):
    written(tmp_path / "t", range(300)).close()
    assert len(list((tmp_path / "t" / "000").iterdir())) == 3  # 128 + 128 + 44


def test_nothing_waits_for_close(tmp_path):
    written(tmp_path / "t", range(130))
    trace = Trace.open(tmp_path / "t")
    assert trace.steps(0) == list(range(130))
    assert_same(trace.record(0, 129), 129, 0)


def test_reading_while_writing(tmp_path):
    """A record that was alone when first seen is found after it was folded."""
    writer = written(tmp_path / "t", range(5))
    trace = Trace.open(tmp_path / "t")
    assert_same(trace.record(0, 3), 3, 0)
    writer.close()
    assert_same(trace.record(0, 4), 4, 0)


def test_whole_batches_lie_apart(tmp_path):
    whole = np.random.default_rng(0).random((10, E))
    writer = TraceWriter(tmp_path / "t", top_k=K, layers=1)
    for n in range(3):
        writer.append(n, 0, **step_of(n) | ({"scores": whole, "whole": True} if n == 1 else {}))
    writer.close()
    trace = Trace.open(tmp_path / "t")
    assert trace.whole_steps(0) == [1]
    np.testing.assert_array_equal(trace.record(0, 1).scores, whole)
    assert [len(trace.record(0, n).scores) for n in (0, 2)] == [3, 3]
    assert trace.sampled_steps(0) == [0, 2]


@pytest.mark.parametrize("closed", [True, False])
def test_scores_are_mapped(tmp_path, closed):
    """Samples out of a chunk and whole batches alike, with nothing that could reach the file."""
    whole = np.random.default_rng(0).random((10, E))
    writer = TraceWriter(tmp_path / "t", top_k=K, layers=1)
    for n in range(4):
        writer.append(n, 0, **step_of(n) | ({"scores": whole, "whole": True} if n == 2 else {}))
    if closed:
        writer.close()
    trace = Trace.open(tmp_path / "t")
    for n in range(4):
        scores = trace.scores(0, n)
        assert isinstance(scores, np.memmap)
        np.testing.assert_array_equal(scores, trace.record(0, n).scores)
        np.testing.assert_array_equal(trace.loads(0, n), step_of(n)["loads"])
        scores[:] = 0
        np.testing.assert_array_equal(trace.scores(0, n), trace.record(0, n).scores)
        assert trace.record(0, n).scores.any()


def test_scores_and_step_sizes_may_be_missing(tmp_path):
    writer = TraceWriter(tmp_path / "t", top_k=K, layers=1)
    writer.append(0, 0, shift=np.zeros(E), shift_after=np.ones(E), loads=[5, 5, 5, 5])
    record = Trace.open(tmp_path / "t").record(0, 0)
    assert record.scores.shape == (0, E)
    assert np.isnan(record.step_size).all()


def test_tensors_are_taken(tmp_path):
    torch = pytest.importorskip("torch")
    writer = TraceWriter(tmp_path / "t", top_k=K, layers=1)
    tensors = {
        name: torch.as_tensor(a) if name != "unit" else a for name, a in step_of(0, rows=0).items()
    }
    writer.append(0, 0, **tensors)
    assert_same(Trace.open(tmp_path / "t").record(0, 0), 0, 0)


@pytest.mark.parametrize("after", [-1, 0, 127, 130, 200, 299, 1000])
def test_resuming_forgets_what_came_later(tmp_path, after):
    written(tmp_path / "t", range(300))
    writer = TraceWriter.resume(tmp_path / "t", after=after)
    kept = min(after, 299)
    assert Trace.open(tmp_path / "t").steps(0) == list(range(kept + 1))
    writer.append(kept + 1, 0, **step_of(2 * (kept + 1), rows=(kept + 1) % 3))
    for n in {0, kept, kept + 1} - {-1}:
        assert_same(Trace.open(tmp_path / "t").record(0, n), n, 0)


def test_killed_while_folding(tmp_path, monkeypatch):
    """The chunk is there, and so are the records it was made from: both tell the same."""
    writer = written(tmp_path / "t", range(127))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        writer.append(127, 0, **step_of(254, rows=1))
    monkeypatch.undo()
    assert Trace.open(tmp_path / "t").steps(0) == list(range(128))
    TraceWriter.resume(tmp_path / "t", after=127).append(128, 0, **step_of(256, rows=2))
    assert Trace.open(tmp_path / "t").steps(0) == list(range(129))
    for n in (0, 127, 128):
        assert_same(Trace.open(tmp_path / "t").record(0, n), n, 0)


def test_a_file_that_is_still_written_is_not_read(tmp_path):
    """And it goes when the trace is continued."""
    written(tmp_path / "t", range(3)).close()
    folder = tmp_path / "t" / "000"
    for name in ("000000003-000000003.npz", "000000001.whole.npz"):
        (folder / f".unfinished-0123abcd-{name}").write_bytes(b"half")
    assert Trace.open(tmp_path / "t").steps(0) == [0, 1, 2]
    assert Trace.open(tmp_path / "t").whole_steps(0) == []
    TraceWriter.resume(tmp_path / "t", after=2)
    assert [path.name for path in folder.iterdir()] == ["000000000-000000002.npz"]


def test_kill_leaves_a_readable_trace(tmp_path):
    code = (
        "import sys, itertools, numpy as np; from equipoise.trace import TraceWriter\n"
        "w = TraceWriter(sys.argv[1], top_k=2, layers=1)\n"
        "for n in itertools.count():\n"
        "    w.append(n, 0, shift=np.full(4, n), shift_after=np.zeros(4), loads=[n] * 4); "
        "print(n, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "t")], stdout=subprocess.PIPE, text=True
    ) as child:
        while int(child.stdout.readline()) < 140:
            pass
        time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
        said = [140, *(int(line) for line in child.stdout.read().split("\n")[:-1])]
    trace = Trace.open(tmp_path / "t")
    steps = trace.steps(0)
    assert steps == list(range(len(steps)))
    assert steps[-1] >= said[-1]
    assert [trace.record(0, n).loads[0] for n in steps] == steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "furlongs"}, "unit must be one of counts, tokens, relative"),
        ({"loads": [1, 2, 3]}, "loads must be 4 numbers"),
        ({"loads": np.full(4, 5.0)}, "loads are counts"),
        ({"shift_after": np.array(["a"] * 4)}, "shift_after must be 4 numbers"),
        ({"scores": np.zeros((3, 5))}, r"scores must be floats of shape \(n, 4\)"),
        ({"scores": np.zeros((3, 4), int)}, "scores must be floats"),
        ({"whole": True}, "count 20 choices, but 3 tokens make 6"),
        ({"whole": True, "scores": None}, "needs the scores"),
    ],
)
def test_wrong_records_are_refused(tmp_path, change, message):
    writer = TraceWriter(tmp_path / "t", top_k=K, layers=1)
    with pytest.raises(TraceError, match=message):
        writer.append(0, 0, **step_of(0) | change)
    assert Trace.open(tmp_path / "t").steps(0) == []


def test_wrong_places_are_refused(tmp_path):
    writer = written(tmp_path / "t", range(3))
    with pytest.raises(TraceError, match="already has step 2, so step 2 cannot follow"):
        writer.append(2, 0, **step_of(0))
    with pytest.raises(TraceError, match="no layer 'c'; its layers are a, b"):
        writer.append(3, "c", **step_of(0))
    with pytest.raises(TraceError, match="no step 7"):
        Trace.open(tmp_path / "t").record(0, 7)
    with pytest.raises(
        TraceError, match=r"already holds a trace: continue it by TraceWriter\.resume"
    ):
        TraceWriter(tmp_path / "t", top_k=K, layers=1)
    with pytest.raises(TraceError, match="names that differ"):
        TraceWriter(tmp_path / "u", top_k=K, layers=["a", "a"])


def test_another_number_of_experts_is_refused_at_once(tmp_path):
    """It was noticed when 128 records were joined, after 127 had been written."""
    writer = written(tmp_path, range(3))
    wide = {**step_of(9), "scores": None}
    wide |= {name: np.zeros(E + 1, wide[name].dtype) for name in ("shift", "shift_after", "loads")}
    wide["step_size"] = None
    for again in (writer, TraceWriter.resume(tmp_path, after=2)):
        with pytest.raises(TraceError, match="layer 'a' has 4 experts, so a record of 5 cannot"):
            again.append(9, 0, **wide)
    writer = TraceWriter(tmp_path / "b", top_k=K, layers=1, target=[1.0] * E)
    with pytest.raises(TraceError, match="has 4 experts"):
        writer.append(9, 0, **wide)


def test_files_with_other_experts_are_named_when_read(tmp_path):
    written(tmp_path / "a", range(2))
    wider = TraceWriter(tmp_path / "b", top_k=K, layers=["a", "b"])
    numbers = {name: np.zeros(E + 1) for name in ("shift", "shift_after")}
    wider.append(5, 0, **numbers, loads=np.zeros(E + 1, np.int64))
    [foreign] = (tmp_path / "b" / "000").glob("*.npz")
    (tmp_path / "a" / "000" / foreign.name).write_bytes(foreign.read_bytes())
    trace = Trace.open(tmp_path / "a")
    with pytest.raises(TraceError, match=rf"{foreign.name} is not of this trace: it has 5 experts"):
        list(trace.updates(0))
