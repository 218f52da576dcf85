"""Maps of engines: read back, and read as the engines do."""

import json

import numpy as np
import pytest

from equipoise.placement import place, read_map
from equipoise.placement.maps import layer_numbers, sglang_map, vllm_map
from tests.placement.made import made_loads

FORMATS = ("placement", "vllm", "sglang", "vllm-ascend")


@pytest.fixture
def found():
    return place(made_loads(8, 8, layers=3), devices=4, redundant=4, distinct=True, exact_seconds=0)


@pytest.mark.parametrize("name", FORMATS)
def test_each_is_read_back(found, tmp_path, name):
    written = found.save(tmp_path / "new" / "folder")
    assert set(written) == set(FORMATS)
    assert (read_map(written[name], devices=4) == found.slots).all()
    assert sorted(each.name for each in (tmp_path / "new/folder").iterdir()) == sorted(
        f"{each}.json" for each in FORMATS
    )


def test_sglang_reads_it(found, tmp_path):
    """As compute_initial_expert_location_metadata does: all keys are passed on as arguments."""

    def init_by_mapping(*, physical_to_logical_map):
        return np.array(physical_to_logical_map)

    path = found.save(tmp_path, model_layers=5)["sglang"]
    rows = init_by_mapping(**json.loads(path.read_text()))
    assert rows.shape == (5, 12)
    assert (rows[:3].reshape(3, 4, 3) == found.slots).all()
    assert (rows[3:] == np.arange(12) % 8).all()


def test_vllm_reads_it(found, tmp_path):
    """As load_static_expert_map does: a list of whole numbers a layer, every expert in each."""
    content = json.loads(found.save(tmp_path)["vllm"].read_text())
    assert isinstance(content, list)
    for layer in content:
        assert all(type(each) is int for each in layer)
        assert len(layer) == 12
        assert set(layer) == set(range(8))


def test_ascend_reads_it(found, tmp_path):
    """As expert_file_to_tensor and init_eplb_config do: an index of each device's experts."""
    data = json.loads(found.save(tmp_path)["vllm-ascend"].read_text())
    assert data["moe_layer_count"] == 3
    for number, layer in enumerate(data["layer_list"]):
        assert (layer["layer_id"], layer["device_count"]) == (number, 4)
        placed = np.array([device["device_expert"] for device in layer["device_list"]])
        index = np.full((4, 8), -1)
        for device in range(4):
            index[device, placed[device]] = np.arange(3)
        # no copy has fallen out of the index
        assert (index >= 0).sum() == 12


def test_doubles_are_no_map_of_ascend(tmp_path):
    loads = np.array([[100, 1, 1, 1]])
    found = place(loads, devices=2, redundant=4)
    (tmp_path / "vllm-ascend.json").write_text("of an earlier placement")
    doubled = place(np.array([[1, 1]]), devices=1, redundant=2)
    written = doubled.save(tmp_path)
    assert "device 0 of layer 0 holds an expert twice" in written["vllm-ascend"]
    assert "--distinct" in written["vllm-ascend"]
    assert not (tmp_path / "vllm-ascend.json").exists()
    assert (tmp_path / "vllm.json").exists()
    assert found.cluster.allows(found.layers[0].slots)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("model.layers.3.mlp", "model.layers.10.mlp"), [3, 10]),
        (("1", "2"), [1, 2]),
        (("blocks.1", "blocks.2"), [1, 2]),
        (("moe", "other"), [0, 1]),
        (("layers.3.a", "layers.3.b"), [0, 1]),
        (("w1_layer", "x2"), [0, 1]),
    ],
)
def test_numbers_of_layers(names, numbers):
    assert layer_numbers(names) == numbers


def test_sglang_rows_stand_at_the_layer_of_the_model():
    slots = np.array([[[1, 0]], [[0, 1]]])
    rows = sglang_map(slots, [2, 3])["physical_to_logical_map"]
    assert rows == [[0, 1], [0, 1], [1, 0], [0, 1]]
    with pytest.raises(ValueError, match="the model has 3 layers, but one that was recorded is"):
        sglang_map(slots, [2, 3], 3)


def test_a_slot_is_counted_by_device():
    assert vllm_map(np.array([[[4, 2], [0, 1]]])) == [[4, 2, 0, 1]]


def test_a_failed_write_leaves_what_was_there(found, tmp_path, monkeypatch):
    found.save(tmp_path)
    before = (tmp_path / "vllm.json").read_bytes()

    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="no room"):
        found.save(tmp_path)
    assert (tmp_path / "vllm.json").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("content", ["{}", "[[1, 2], [3]]", '"text"', "[[0, 1, 2]]"])
def test_other_files_are_no_maps(content, tmp_path):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(ValueError, match=r"other.json holds no placement on 2 devices"):
        read_map(tmp_path / "other.json", devices=2)
