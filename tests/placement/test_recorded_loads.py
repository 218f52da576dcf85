"""Loads from every kind of file, and what is refused."""

import json

import numpy as np
import pytest

from equipoise.placement import RecordedLoads
from equipoise.storage.arrays import write_arrays
from equipoise.trace import TraceWriter
from tests.placement.made import made_loads

LOADS = made_loads(3, 4, layers=2)


def write_trace(folder, steps):
    """A trace of LOADS with two layers; `steps` are those of each layer."""
    about = {"groups": [2, 1], "gate": None, "sequence_length": None}
    zero = np.zeros(4, np.float32)
    with TraceWriter(folder, top_k=1, layers=["layers.3", "layers.5"], about=about) as writer:
        for layer, recorded in enumerate(steps):
            for step in recorded:
                loads = LOADS[step, layer]
                writer.append(step, layer, shift=zero, shift_after=zero, loads=loads)


def test_a_trace_gives_the_steps_that_all_layers_have(tmp_path):
    write_trace(tmp_path / "run" / "trace", [(0, 1, 2), (1, 2)])
    found = RecordedLoads.of(tmp_path / "run")
    assert (found.loads == LOADS[1:]).all()
    assert (found.layers, found.groups) == (("layers.3", "layers.5"), 2)


def test_a_trace_without_such_a_step(tmp_path):
    write_trace(tmp_path / "trace", [(0,), (1,)])
    with pytest.raises(ValueError, match="has no step of which all layers are recorded"):
        RecordedLoads.of(tmp_path / "trace")


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "json", "bare", "sglang", "array"])
def test_all_kinds_are_the_same(kind, tmp_path):
    path = tmp_path / f"loads.{kind}"
    if kind == "npy":
        np.save(path, LOADS)
    elif kind in ("npz", "safetensors"):
        write_arrays(path, {"loads": LOADS, "other": LOADS[:1]})
    elif kind != "array":
        key = {"json": "loads", "sglang": "logical_count"}.get(kind)
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps({key: LOADS.tolist()} if key else LOADS.tolist()))
    found = RecordedLoads.of(LOADS if kind == "array" else path)
    assert (found.loads == LOADS).all()
    assert found.layers == ("0", "1")
    assert found.groups is None
    assert RecordedLoads.of(found) is found


def test_json_may_say_more(tmp_path):
    content = {"loads": LOADS.tolist(), "layers": ["layers.3", "layers.5"], "groups": 2}
    (tmp_path / "loads.json").write_text(json.dumps(content))
    found = RecordedLoads.of(str(tmp_path / "loads.json"))
    assert (found.layers, found.groups) == (("layers.3", "layers.5"), 2)


def test_one_layer_needs_no_axis():
    assert RecordedLoads.of(LOADS[:, 0]).loads.shape == (3, 1, 4)


def test_halves():
    first, second = RecordedLoads.of(LOADS).halves
    assert (len(first), len(second)) == (1, 2)
    assert RecordedLoads.of(LOADS[:1]).halves is None


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4), r"has the shape \(4,\): loads are \(batches, layers, experts\)"),
        (np.zeros((0, 2, 4)), "has the shape"),
        (np.array([[1.0, -1]]), "loads count tokens, finite numbers of 0 or more"),
        (np.array([[1.0, np.nan]]), "loads count tokens"),
        (np.array([["a", "b"]]), "loads count tokens"),
    ],
)
def test_what_are_no_loads(array, message):
    with pytest.raises(ValueError, match=message):
        RecordedLoads.of(array)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", '{"tokens": 1}', "holds neither loads nor logical_count"),
        ("x.json", '{"loads": [[1, 2], [3]]}', "its loads are no table of numbers"),
        ("x.json", '{"loads": [[1, 2]], "layers": ["a", "b"]}', "names 2 layers and has 1"),
        ("x.json", "[1", "is damaged: it is not JSON"),
        ("x.csv", "1, 2", "loads are read from a trace's folder, .npy, .npz or .json"),
    ],
)
def test_files_that_are_refused(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        RecordedLoads.of(tmp_path / name)


def test_a_folder_without_a_trace(tmp_path):
    with pytest.raises(ValueError, match="is not a trace"):
        RecordedLoads.of(tmp_path)
