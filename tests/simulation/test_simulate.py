"""The whole of it: hours by hand, a folder that continues, workers, mistakes."""

import dataclasses
import json

import numpy as np
import pytest

import equipoise
from equipoise.costs.fullest import fullest_by_chance
from equipoise.experiments.step_time import step_time
from equipoise.placement.maps import read_map
from equipoise.results.simulation import (
    layer_path,
    read_layer,
    read_simulation_settings,
    write_layer,
)
from equipoise.simulation import run_layers
from equipoise.simulation.costs import balancer_labels, cost_layers
from equipoise.simulation.placed import read_devices
from tests.simulation.conftest import CLUSTER, SMALL


def test_hours_by_hand(small):
    """Two layers of three steps, two balancers; the second layer of the first one waits more."""
    times = step_time(SMALL, CLUSTER, expert_parallel=8)
    made = equipoise.simulate(
        **{**small, "layers": 2, "steps": 3, "balancers": ["none", "deepseek"]}
    )
    one = np.array([[2.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    two = np.array([[4.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    found = cost_layers(made.settings, [one, two], price=10.0)
    best, worst = found.rows
    assert (best.balancer, best.lost_device_hours, best.even_after) == ("deepseek", 0, 0)
    per_unit = (times.expert_seconds + times.exchange_seconds) * 16 / 3600
    # (1 + 1 + 1 and 3 + 1 + 1) over two layers
    assert worst.lost_device_hours == pytest.approx(4 * per_unit)
    assert worst.lost_money == pytest.approx(40 * per_unit)
    assert worst.lost_early == pytest.approx(2 * per_unit)
    # hours of 3 and 5 units: a spread of sqrt 2, of two layers out of six
    assert worst.standard_error == pytest.approx(per_unit * (2 / 2) ** 0.5 * (4 / 6) ** 0.5)
    balanced = 3 * times.seconds() * 16 / 3600
    assert worst.lost_share == pytest.approx(4 * per_unit / (balanced + 4 * per_unit))
    assert found.fullest["none"] == [3, 2, 2]
    assert worst.even_after is None


def test_balancing_loses_less(small):
    found = equipoise.simulate(**{**small, "steps": 40})
    assert [row.balancer for row in found.rows] == ["quantile", "deepseek", "none"]
    assert len({row.fullest_first for row in found.rows}) == 1
    assert found.rows[0].fullest_last < 1.3 < found.rows[-1].fullest_last
    assert found.chance == fullest_by_chance(8 * 256, 32, 8, 4)


def test_interrupted_and_continued_is_unbroken(small, tmp_path, monkeypatch):
    """To the last digit; the layer that was being made is made again."""
    whole = equipoise.simulate(**small)
    simulate_layer, begun = run_layers.simulate_layer, []

    def stop_in_the_second(settings, layer, on_step):
        begun.append(layer)
        if layer == 1 and len(begun) == 2:
            raise KeyboardInterrupt
        return simulate_layer(settings, layer, on_step)

    monkeypatch.setattr(run_layers, "simulate_layer", stop_in_the_second)
    with pytest.raises(
        KeyboardInterrupt, match=r"1 of 3 layers are in .* the same command continues"
    ):
        equipoise.simulate(**small, out=tmp_path)
    continued = equipoise.simulate(**small, out=tmp_path)
    assert begun == [0, 1, 1, 2]
    assert continued == whole
    assert equipoise.simulate(**small, out=tmp_path) == whole
    assert len((tmp_path / "simulation.log").read_text().splitlines()) == 3


def test_damaged_layers_are_made_again(small, tmp_path):
    whole = equipoise.simulate(**small, out=tmp_path)
    layer_path(tmp_path, 0).write_bytes(b"PK")
    write_layer(tmp_path, 1, np.zeros((2, 2)))
    assert equipoise.simulate(**small, out=tmp_path) == whole


def test_more_layers_may_be_asked_for(small, tmp_path):
    equipoise.simulate(**{**small, "layers": 1}, out=tmp_path)
    before = layer_path(tmp_path, 0).stat().st_mtime_ns
    assert equipoise.simulate(**small, out=tmp_path) == equipoise.simulate(**small)
    assert layer_path(tmp_path, 0).stat().st_mtime_ns == before
    assert read_simulation_settings(tmp_path).layers == 3


def test_other_settings_are_refused(small, tmp_path):
    equipoise.simulate(**{**small, "layers": 1}, out=tmp_path)
    with pytest.raises(ValueError, match="steps: 12 there, 13 here"):
        equipoise.simulate(**{**small, "steps": 13}, out=tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").touch()
    with pytest.raises(ValueError, match="holds something else"):
        equipoise.simulate(**small, out=tmp_path / "other")


def test_settings_are_read_as_they_were_written(small, tmp_path):
    found = equipoise.simulate(**{**small, "layers": 1}, out=tmp_path)
    assert read_simulation_settings(tmp_path) == found.settings
    text = (tmp_path / "simulation.json").read_text()
    (tmp_path / "simulation.json").write_text(text.replace('"format": 1', '"format": 0'))
    with pytest.raises(ValueError, match="has format 0, and this version writes 1"):
        read_simulation_settings(tmp_path)


@pytest.mark.slow
def test_workers_make_the_same(small, tmp_path):
    """Processes of the sweep's local engine."""
    assert equipoise.simulate(**small, out=tmp_path, workers=2) == equipoise.simulate(**small)


@pytest.mark.slow
def test_a_worker_that_fails_says_why(small, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "equipoise.simulation.shard.Shard.command",
        lambda self, options: ["python", "-c", "raise SystemExit('no such thing')"],
    )
    with pytest.raises(ChildProcessError, match="no such thing"):
        equipoise.simulate(**small, out=tmp_path, workers=2)


@pytest.mark.slow
def test_ray_makes_the_same(small, tmp_path):
    ray = pytest.importorskip("ray", reason="no ray: its engine is not tried")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        found = equipoise.simulate(**small, out=tmp_path, engine="ray", workers=2)
    finally:
        ray.shutdown()
    assert found == equipoise.simulate(**small)


def test_rates_and_labels(small):
    more = {"balancers": ["none", "deepseek"], "rates": [1e-3, 1e-2], "layers": 1, "steps": 2}
    found = equipoise.simulate(**{**small, **more})
    assert balancer_labels(found.settings) == ["none", "deepseek 0.001", "deepseek 0.01"]
    assert [*found.fullest] == balancer_labels(found.settings)


def test_devices_of_a_placement(small, tmp_path):
    """Blocks by their numbers are the default; pairs of far experts are others."""
    path = tmp_path / "devices.json"
    path.write_text(json.dumps([expert // 4 for expert in range(32)]))
    blocks = equipoise.simulate(**small, placement=path)
    assert blocks.fullest == equipoise.simulate(**small).fullest
    path.write_text(json.dumps([expert % 8 for expert in range(32)]))
    assert equipoise.simulate(**small, placement=path).fullest != blocks.fullest


@pytest.mark.parametrize("name", ["placement", "vllm", "vllm-ascend"])
def test_a_map_of_place_is_a_list_of_devices(name, small, tmp_path):
    loads = np.random.default_rng(0).integers(1, 100, (6, 1, 32))
    equipoise.place(loads, devices=8).save(tmp_path)
    placed = read_devices(tmp_path / f"{name}.json", 32, 8)
    slots = read_map(tmp_path / f"{name}.json", 8)
    for row, devices in zip(placed, slots, strict=True):
        assert all(expert in devices[device] for expert, device in enumerate(row))
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(placed[0]))
    by_list, by_map = (
        equipoise.simulate(**small, placement=file) for file in (path, tmp_path / f"{name}.json")
    )
    assert by_list.fullest == by_map.fullest


def test_copies_are_refused(small, tmp_path):
    loads = np.random.default_rng(0).integers(1, 100, (6, 1, 32))
    equipoise.place(loads, devices=8, redundant=8).save(tmp_path)
    with pytest.raises(ValueError, match="40 slots for the 32 experts"):
        equipoise.simulate(**small, placement=tmp_path / "placement.json")


def test_a_recorded_stream_is_taken_as_it_is(small, tmp_path):
    rng, recorded = np.random.default_rng(0), tmp_path / "scores"
    writer = equipoise.TraceWriter(recorded, layers=["a", "b"], top_k=4)
    scores = rng.random((2, 3, 64, 32), np.float32) + np.linspace(0, 1, 32, dtype=np.float32)
    for step in range(3):
        for layer in range(2):
            _record(writer, step, layer, scores[layer, step])
    writer.close()
    given = {**small, "layers": None, "balancers": ["none"]}
    found = equipoise.simulate(**given, stream=str(recorded))
    assert (found.settings.layers, found.settings.steps, found.settings.pool) == (2, 3, 0)
    assert found.chance == fullest_by_chance(64, 32, 8, 4)
    chosen = np.argsort(-scores, axis=-1, kind="stable")[..., :4]
    loads = np.array(
        [[np.bincount(rows.ravel() // 4, minlength=8) for rows in layer] for layer in chosen]
    )
    np.testing.assert_allclose(found.fullest["none"], (loads.max(-1) * 8 / (64 * 4)).mean(0))
    with pytest.raises(ValueError, match="32 experts, of which a token takes 4; tiny has 16 and 2"):
        equipoise.simulate("tiny", "h100-8", stream=str(recorded))


def _record(writer, step, layer, scores):
    loads = np.bincount(np.argsort(-scores, axis=1)[:, :4].ravel(), minlength=32)
    zeros = np.zeros(32, np.float32)
    writer.append(
        step, layer, shift=zeros, shift_after=zeros, loads=loads, scores=scores, whole=True
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"layers": 7}, "small has 6 MoE layers"),
        ({"pool": -1}, "pool is a number of tokens"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"engine": "rai"}, "no engine 'rai'"),
        ({"address": "x"}, "it goes with --engine ray"),
        ({"balancers": ["deepsek"]}, "no balancer 'deepsek'"),
        ({"balancers": ["aux"]}, "acts through the loss"),
        ({"stream": "nowhere"}, "no stream '.*nowhere'"),
        ({"stream": "sequences"}, "has sequences or padding"),
        ({"price": -1}, "price of a device hour"),
        ({"model": "deepsek-v3"}, "did you mean 'deepseek-v3'"),
    ],
)
def test_mistakes_are_explained_before_anything_runs(small, options, message):
    with pytest.raises(ValueError, match=message):
        equipoise.simulate(**{**small, **options})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "a list of whole numbers"),
        ("[0, 1]", "names 2 devices, and there are 32 experts"),
        (str([8] * 32), "has device 8: a group has devices 0 to 7"),
    ],
)
def test_wrong_placements_are_explained(content, message, small, tmp_path):
    (tmp_path / "devices.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        equipoise.simulate(**small, placement=tmp_path / "devices.json")


def test_a_layer_that_is_not_there(small, tmp_path):
    found = equipoise.simulate(**{**small, "layers": 1}, out=tmp_path)
    assert read_layer(tmp_path, 5, found.settings) is None
    with pytest.raises(ValueError, match="no layer is done yet"):
        cost_layers(found.settings, [])
    assert dataclasses.replace(found.settings, layers=3).layers == 3
