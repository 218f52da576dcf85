"""Metrics: each against a case one can work out by hand, and within the bounds it promises."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import idle_share, metrics
from equipoise.routing import load_metrics

NAMES = ["imbalance", "max_violation", "min_violation", "cv", "effective_experts", "dead_experts"]


@st.composite
def forwards(draw):
    """Loads (M, E) of a few forwards."""
    num_experts = draw(st.integers(1, 12))
    row = st.lists(st.integers(0, 10**6), min_size=num_experts, max_size=num_experts)
    return torch.tensor(draw(st.lists(row, min_size=1, max_size=4)))


def values(loads, target=None):
    return metrics(loads, target)


def test_hand_case_agrees():
    # r = 2, 1, 1, 0
    assert values([4, 2, 2, 0]) == pytest.approx(
        {
            "imbalance": 0.5,
            "max_violation": 1.0,
            "min_violation": -1.0,
            "cv": math.sqrt(0.5),
            "effective_experts": 2**1.5,  # shares 1/2, 1/4, 1/4: an entropy of 1.5 bits
            "dead_experts": 1.0,
        }
    )


@pytest.mark.parametrize("load", [1, 7, 49, 10**9])
def test_balance_is_exact(load):
    found = values([load] * 49)
    assert found.pop("effective_experts") == pytest.approx(49)
    assert found == dict.fromkeys(found, 0.0)


def test_collapse_is_worst():
    num_experts, top_k = 8, 2
    found = values([100] * top_k + [0] * (num_experts - top_k))
    assert found["max_violation"] == num_experts / top_k - 1
    assert found["imbalance"] == 2 * (1 - top_k / num_experts)
    assert found["effective_experts"] == pytest.approx(top_k)
    assert found["dead_experts"] == num_experts - top_k


def test_leading_dimensions_are_kept():
    loads = torch.randint(0, 9, (3, 2, 5), generator=torch.Generator().manual_seed(0))
    found = load_metrics(loads)
    assert list(found) == NAMES
    for name, value in found.items():
        assert value.shape == (3, 2)
        assert value.dtype == torch.float64
        assert value[2, 1] == metrics(loads[2, 1])[name]


def test_users_get_plain_numbers():
    """Ready for a log, JSON or a comparison; and the same as those that stay on the device."""
    loads = torch.tensor([5, 3, 0, 2])
    found, tensors = metrics(loads, [2, 1, 1, 1]), load_metrics(loads, [2, 1, 1, 1])
    assert list(found) == NAMES
    assert all(type(value) is float for value in found.values())
    assert found == {name: value.item() for name, value in tensors.items()}


def test_many_loads_are_sent_elsewhere():
    with pytest.raises(ValueError, match=r"not \(2, 3\): equipoise.routing.load_metrics"):
        metrics([[1, 2, 3], [1, 2, 3]])


def test_target_replaces_even_share():
    balanced = values([6, 3, 3], target=[2, 1, 1])
    assert balanced["imbalance"] == balanced["max_violation"] == balanced["cv"] == 0
    # r = 1/2, 1, 2
    found = values([3, 3, 6], target=[2, 1, 1])
    assert found["imbalance"] == pytest.approx(0.5)
    assert (found["max_violation"], found["min_violation"]) == (1.0, -0.5)
    assert found["cv"] == pytest.approx(math.sqrt(2 / 7))  # variance 7/18, mean 7/6
    assert found["effective_experts"] == pytest.approx(7 / 2 ** (10 / 7))  # shares 1/7, 2/7, 4/7


def test_target_names_every_expert():
    with pytest.raises(ValueError, match=r"target has shape \(2,\), but there are 3 experts"):
        metrics([1, 2, 3], target=[1, 1])


def test_no_tokens_measure_zero():
    found = {name: each.tolist() for name, each in load_metrics([[0, 0, 0], [4, 1, 1]]).items()}
    assert {name: value[0] for name, value in found.items()} == dict.fromkeys(NAMES, 0.0)
    assert [value[1] for value in found.values()] == list(values([4, 1, 1]).values())


@settings(deadline=None, max_examples=60)
@given(forwards())
def test_metrics_keep_bounds(loads):
    num_experts, some = loads.shape[1], loads.sum(1) > 0
    found = {name: value[some] for name, value in load_metrics(loads).items()}
    assert (found["max_violation"] >= 0).all()
    assert (found["max_violation"] <= num_experts - 1).all()
    assert (found["min_violation"] <= 0).all()
    assert (found["min_violation"] >= -1).all()
    assert (found["imbalance"] <= 2 * (1 - 1 / num_experts) + 1e-12).all()
    assert (found["effective_experts"] >= 1 - 1e-12).all()
    assert (found["effective_experts"] <= num_experts + 1e-9).all()
    assert torch.equal(found["dead_experts"] > 0, found["min_violation"] == -1)


def test_blocks_share_devices():
    assert idle_share([30, 10, 10, 10], devices=2) == 0.25
    assert idle_share([30, 10, 10, 10], devices=4) == 0.5
    assert idle_share([30, 10, 10, 10], devices=1) == 0


def test_placement_decides_idling():
    loads = [30, 10, 10, 10]
    assert idle_share(loads, devices=[0, 1, 1, 1]) == 0
    assert idle_share(loads, devices=[7, 7, 3, 3]) == 0.25
    assert idle_share(loads, devices=torch.tensor([0, 0, 0, 1])) == pytest.approx(0.4)


def test_sum_hides_waiting():
    loads = torch.tensor([[30, 10], [10, 30]])
    assert idle_share(loads, devices=2) == pytest.approx(1 / 3)
    assert idle_share(loads.sum(0), devices=2) == 0


def test_no_tokens_idle_nowhere():
    assert idle_share([0, 0], devices=2) == 0
    assert idle_share([[0, 0], [30, 10]], devices=2) == idle_share([30, 10], devices=2)


@settings(deadline=None, max_examples=60)
@given(forwards(), st.data())
def test_idle_share_keeps_bounds(loads, data):
    num_experts = loads.shape[1]
    devices = data.draw(
        st.sampled_from([d for d in range(1, num_experts + 1) if num_experts % d == 0])
    )
    blocks = idle_share(loads, devices)
    assert 0 <= blocks < 1
    assert blocks <= 1 - 1 / devices + 1e-12
    assert (
        idle_share(loads, [expert * devices // num_experts for expert in range(num_experts)])
        == blocks
    )
    assert idle_share(loads.sum(0), devices) <= blocks + 1e-12


@pytest.mark.parametrize("devices", [0, 3, 8])
def test_blocks_must_be_equal(devices):
    with pytest.raises(
        ValueError,
        match=f"4 experts do not divide over {devices} devices: pass the device of every",
    ):
        idle_share([1, 2, 3, 4], devices)


def test_placement_names_every_expert():
    with pytest.raises(ValueError, match="3 devices are named for 4 experts: name one for each"):
        idle_share([1, 2, 3, 4], [0, 0, 1])


def test_shares_idle_like_loads():
    torch.testing.assert_close(idle_share([0.3, 0.1], 2), torch.tensor(1 / 3, dtype=torch.float64))


def test_targets_of_zero_are_refused():
    with pytest.raises(ValueError, match="must be positive"):
        metrics([1, 2, 3], target=[1, 0, 2])


@pytest.mark.parametrize("load", [float("nan"), float("inf"), -1.0])
def test_loads_that_count_nothing_are_refused(load):
    for measure in (metrics, lambda loads: idle_share(loads, 2)):
        with pytest.raises(ValueError, match="loads count tokens"):
            measure(torch.tensor([1.0, load]))


def test_loads_that_cannot_be_looked_at_do_not_measure_zero(monkeypatch):
    module = importlib.import_module("equipoise.routing.metrics")
    monkeypatch.setattr(module, "is_readable", lambda _: False)
    assert math.isnan(metrics(torch.tensor([1.0, torch.nan]))["imbalance"])


def test_one_target_serves_all_leading_dimensions():
    loads = torch.tensor([[2, 6], [6, 2]])
    both = load_metrics(loads, target=[1, 3])
    for row in range(2):
        alone = load_metrics(loads[row], target=[1, 3])
        assert {name: value[row] for name, value in both.items()} == alone
    with pytest.raises(ValueError, match="target has shape \\(2, 2\\), but there are 2 experts"):
        load_metrics(loads, target=[[1.0, 3.0], [1.0, 3.0]])


def test_targets_keep_all_their_digits():
    """As float32, 0.1 and 0.7 are not in the ratio of 1 to 7 to more than 8 digits."""
    found = values([1, 2, 7], target=[0.1, 0.2, 0.7])
    assert abs(found["imbalance"]) < 1e-14


@pytest.mark.parametrize("target", [None, [1.0, 2.0, 1.0]])
def test_measures_stay_on_the_device_of_the_loads(target):
    """The meta device stands in for a GPU: a tensor of the CPU among them would be refused."""
    found = load_metrics(torch.ones(2, 3, dtype=torch.int64, device="meta"), target)
    assert {(value.device.type, tuple(value.shape)) for value in found.values()} == {("meta", (2,))}
