"""place: never worse than EPLB or linear blocks, the same for the same seed, and judged rightly."""

import importlib

import numpy as np
import pytest

from equipoise.placement import Placement, place
from equipoise.placement.cluster import Cluster
from equipoise.placement.device_loads import fullest_device, linear_slots
from equipoise.placement.eplb import eplb_slots
from equipoise.placement.place import SEARCH_SIZE
from equipoise.training import train
from tests.placement.made import made_loads
from tests.training.micro import small_config

TEXT = "\n".join(f"{word} of {word[::-1]} is {word[1:]}" for word in dir(np) if word.isalpha())
CASES = [
    {"devices": 4},
    {"devices": 16},
    {"devices": 8, "redundant": 8},
    {"devices": 8, "redundant": 16, "distinct": True},
    {"devices": 8, "redundant": 8, "nodes": 2, "groups": 4},
    {"devices": 4, "nodes": 4, "groups": 4},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training without balancing, whose loads are uneven."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "texts").mkdir()
    (folder / "texts/text.txt").write_text(TEXT)
    options = {"balancer": "none", "steps": 12, "trace_every": 1, "trace_scores": 0}
    train(small_config(str(folder / "texts"), out=str(folder / "run"), **options))
    return folder / "run"


def assert_never_worse(found: Placement, loads):
    """By a sum of its own: EPLB from the published rules, on the same batches."""
    cluster = found.cluster
    free = Cluster(**{**vars(cluster), "distinct": False})
    linear = linear_slots(cluster.num_experts, cluster.devices, cluster.redundant)
    for number, layer in enumerate(found.layers):
        batches = loads[:, number]
        cost = fullest_device(batches, layer.slots)
        assert cluster.allows(layer.slots)
        assert cost == pytest.approx(layer.cost)
        rival = eplb_slots(batches.mean(0), free)
        if cluster.allows(rival):
            assert cost <= fullest_device(batches, rival) * (1 + 1e-12)
        if cluster.allows(linear):
            assert cost <= fullest_device(batches, linear) * (1 + 1e-12)
        assert layer.bound <= cost


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_never_worse_on_made_loads(options, seed):
    loads = made_loads(40, 16, seed, layers=2)
    assert_never_worse(place(loads, **options, exact_seconds=0), loads)


def test_never_worse_where_the_search_sees_some_batches_only():
    loads = made_loads(1 + SEARCH_SIZE // 64, 32)
    found = place(loads, devices=8, redundant=32)
    assert_never_worse(found, loads)


@pytest.mark.parametrize("options", [{"devices": 4}, {"devices": 4, "redundant": 4}], ids=str)
def test_never_worse_on_a_recorded_training(run, options):
    found = place(run, **options)
    assert found.batches == 12
    loads = np.stack([np.array(layer) for layer in _loads_of(run)], axis=1)
    assert_never_worse(found, loads)


def _loads_of(run):
    from equipoise.trace import Trace

    trace = Trace.open(run)
    return [[trace.loads(layer, step) for step in trace.steps(layer)] for layer in trace.layers]


def test_it_is_better_where_batches_differ():
    loads = made_loads(60, 64, 1)
    placed, rival = (place(loads, devices=16, redundant=16).rows()[n].fullest for n in (2, 1))
    assert placed < 0.95 * rival


def test_a_small_layer_is_proved():
    found = place(made_loads(6, 6), devices=3)
    assert found.layers[0].proved
    assert found.layers[0].bound == pytest.approx(found.layers[0].cost, rel=1e-6)


def test_unseen_batches_are_judged_with_what_was_placed_before():
    loads = made_loads(30, 16, 2)
    found = place(loads, devices=4, exact_seconds=0)
    first = place(loads[:15], devices=4, exact_seconds=0)
    assert (found.held_out[0].slots == first.layers[0].slots).all()
    assert found.held_out[0].cost == fullest_device(loads[15:, 0], first.layers[0].slots)
    assert found.held_out[0].rival_cost == fullest_device(
        loads[15:, 0], first.layers[0].rival_slots
    )


def test_one_batch_has_nothing_unseen():
    found = place(made_loads(1, 16), devices=4, exact_seconds=0)
    assert found.held_out == ()
    assert found.rows(held_out=True) == []
    assert found.to_dict()["held_out"] == []


def test_rows_are_device_time():
    """Two batches by hand: linear 18 and 2, placed 10 and 10."""
    found = place(np.array([[9, 9, 1, 1], [9, 9, 1, 1]]), devices=2)
    linear, rival, placed, bound = found.rows(device_hours=90)
    assert [row.way for row in found.rows()] == ["linear", "eplb", "placed", "bound"]
    assert (linear.fullest, linear.idle_share, linear.device_hours) == (1.8, 1 - 10 / 18, 90)
    assert (placed.fullest, placed.idle_share, placed.device_hours) == (1, 0, 50)
    assert rival.fullest == bound.fullest == 1


def test_the_same_seed_is_the_same_placement():
    loads = made_loads(20, 32, layers=3)
    found = [place(loads, devices=8, redundant=8, seed=5).slots for _ in range(2)]
    assert (found[0] == found[1]).all()


def test_layers_do_not_know_each_other():
    loads = made_loads(20, 16, layers=3)
    together = place(loads, devices=4, exact_seconds=0).slots
    alone = [place(loads[:, n], devices=4, exact_seconds=0).slots[0] for n in range(3)]
    assert (together == np.stack(alone)).all()


def test_names_of_experts_do_not_matter():
    """Relabelled experts cost the same where the best is proved."""
    loads = made_loads(6, 6)
    order = np.random.default_rng(0).permutation(6)
    costs = [place(each, devices=3).layers[0].cost for each in (loads, loads[:, :, order])]
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)


def test_no_tokens_at_all():
    found = place(np.zeros((2, 1, 4)), devices=2)
    assert found.rows() == []
    assert found.layers[0].cost == 0


def test_counts_whose_sum_no_int64_holds():
    found = place(np.full((2, 1, 4), 2**62), devices=2)
    assert [row.fullest for row in found.rows()] == [1.0] * 4


def test_what_linear_blocks_do_already_needs_no_integer_program(monkeypatch):
    def refuse(*_):
        raise AssertionError("it is proved without")

    module = importlib.import_module("equipoise.placement.place")
    monkeypatch.setattr(module, "solve_exactly", refuse)
    assert place(np.full((2, 3, 8), 7), devices=4).layers[0].proved


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_time_that_is_none(seconds):
    with pytest.raises(ValueError, match="exact_seconds is a time, 0 or more, not"):
        place(np.ones((2, 1, 4)), devices=2, exact_seconds=seconds)


@pytest.mark.parametrize("hours", [-1.0, float("nan"), float("inf")])
def test_device_hours_that_are_none(hours):
    with pytest.raises(ValueError, match="device_hours is a time, finite and 0 or more, not"):
        place(np.ones((2, 1, 4)), devices=2).rows(hours)


def test_groups_come_from_the_trace_or_the_argument():
    loads = made_loads(10, 16)
    assert place(loads, devices=4, nodes=2, groups=4).to_dict()["policy"] == "hierarchical"
    assert place(loads, devices=4, nodes=2, exact_seconds=0).to_dict()["policy"] == "global"
