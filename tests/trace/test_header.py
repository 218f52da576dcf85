"""The header says what a trace is of, in one set of keys."""

import json

import numpy as np
import pytest

from equipoise.trace import Trace, TraceAbout, TraceError, TraceHeader, TraceWriter, is_trace


def test_a_header_comes_back(tmp_path):
    about = TraceAbout(gate="softmax", sequence_length=256, groups=(8, 4), balancer="sign", seed=3)
    header = TraceHeader.new(6, ["a", "b"], about, [1, 2, 3])
    assert not is_trace(tmp_path)
    header.save(tmp_path)
    assert is_trace(tmp_path)
    read = TraceHeader.load(tmp_path)
    assert read == header
    assert TraceAbout.from_json(read.about) == about


def test_gate_groups_and_sequence_length_are_always_there():
    """A reader can tell "not known" from a trace that is older than the key."""
    about = TraceAbout(gate=None, sequence_length=None).to_json()
    assert about == {"gate": None, "groups": None, "sequence_length": None}


def test_older_traces_have_no_sequence_length(tmp_path):
    TraceWriter(tmp_path, top_k=2, layers=1, about={"gate": "sigmoid", "mine": [1]})
    trace = Trace.open(tmp_path)
    assert trace.about == {"gate": "sigmoid", "mine": [1]}
    assert (trace.sequence_length, trace.groups) == (None, None)


def test_about_is_typed_for_readers(tmp_path):
    about = TraceAbout(gate="sigmoid", sequence_length=16, groups=(4, 2))
    TraceWriter(tmp_path, top_k=2, layers=1, about=about)
    trace = Trace.open(tmp_path)
    assert (trace.sequence_length, trace.groups) == (16, (4, 2))
    assert trace.header_text == (tmp_path / "trace.json").read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [("top_k", "two"), ("top_k", 0), ("layers", "ab"), ("layers", [1]), ("target", 3),
     ("target", ["a"]), ("about", None)],
)  # fmt: skip
def test_damaged_headers_are_refused(tmp_path, key, value):
    TraceWriter(tmp_path, top_k=2, layers=1)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(TraceError, match=rf"trace\.json is damaged: its {key} cannot be"):
        Trace.open(tmp_path)


@pytest.mark.parametrize("wrong", [{"groups": [4]}, {"groups": "4, 2"}, {"sequence_length": -1}])
def test_wrong_origins_are_refused_when_asked_for(tmp_path, wrong):
    """Not before: anybody may keep what they like in a header."""
    TraceWriter(tmp_path, top_k=2, layers=1, about=wrong)
    trace = Trace.open(tmp_path)
    (key,) = wrong
    with pytest.raises(TraceError, match=f"has the {key}"):
        getattr(trace, key)


def test_a_target_of_numpy_numbers_is_taken(tmp_path):
    TraceWriter(tmp_path, top_k=2, layers=1, target=np.ones(3, np.float32))
    assert Trace.open(tmp_path).target == (1.0, 1.0, 1.0)
