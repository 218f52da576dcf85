"""Tally: whole numbers that add up, and refuse to where adding would be wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise import Tally


def tally(loads, step=0, **parts):
    loads = torch.tensor(loads)
    parts = {name: torch.tensor(part) for name, part in parts.items()}
    return Tally(loads, loads.unsqueeze(0), torch.tensor(step), parts)


def test_tallies_add():
    total = tally([1, 2], step=7, pairs=[[1, 0], [0, 1]]) + tally(
        [10, 20], step=7, pairs=[[5, 6], [7, 8]]
    )
    assert total.loads.tolist() == [11, 22]
    assert total.parts["pairs"].tolist() == [[6, 6], [7, 9]]
    assert total.step == 7


def test_forwards_stay_apart():
    total = tally([1, 2]) + tally([10, 20]) + tally([100, 200])
    assert total.forwards.tolist() == [[1, 2], [10, 20], [100, 200]]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 2**40), min_size=3, max_size=3), min_size=1, max_size=6),
    st.data(),
)
def test_cuts_change_no_sum(rows, data):
    cut = data.draw(st.integers(0, len(rows)))
    whole = sum(tally(row) for row in rows)
    halves = sum(tally(row) for row in rows[:cut]) + sum(tally(row) for row in rows[cut:])
    assert whole.loads.tolist() == [sum(column) for column in zip(*rows)]
    assert torch.equal(halves.loads, whole.loads)
    assert torch.equal(halves.forwards, whole.forwards)


def test_adding_changes_no_term():
    one, other = tally([1, 2], part=[3]), tally([10, 20], part=[4])
    total = one + other
    total.loads.zero_()
    assert one.loads.tolist() == [1, 2]
    assert other.loads.tolist() == [10, 20]
    assert one.parts["part"].tolist() == [3]
    assert one.forwards.tolist() == [[1, 2]]


def test_different_steps_refuse():
    with pytest.raises(
        ValueError, match=r"at steps 3 and 4 .* start a new sum after every update\(\)"
    ):
        tally([1, 2], step=3) + tally([1, 2], step=4)


@pytest.mark.parametrize(
    "other",
    [
        tally([1, 2, 3], part=[3]),
        tally([1, 2]),
        tally([1, 2], part=[3, 4]),
        tally([1, 2], another=[3]),
    ],
    ids=["experts", "missing", "shape", "name"],
)
def test_different_counts_refuse(other):
    one = tally([1, 2], part=[3])
    with pytest.raises(
        ValueError, match=r"count different things.*'loads': \(2,\), 'part': \(1,\)"
    ):
        one + other
    with pytest.raises(ValueError, match="count different things"):
        other + one


@pytest.mark.parametrize("other", [1, 0.0, None, torch.ones(2)])
def test_only_tallies_add(other):
    with pytest.raises(TypeError):
        tally([1, 2]) + other


def test_whole_tally_moves():
    here = tally([1, 2], part=[3])
    there = here.to("meta")
    assert all(t.is_meta for t in (there.loads, there.forwards, there.step, there.parts["part"]))
    assert here.to("cpu").loads.tolist() == [1, 2]
    assert not here.loads.is_meta


@pytest.mark.parametrize("method", ["deepseek", "quantile", "curvature"])
def test_a_forward_with_its_tally_can_be_exported(method):
    class Forward(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.balancer = equipoise.balancer(method, 8, top_k=2)

        def forward(self, scores):
            routing = self.balancer.route(scores)
            return routing.experts, self.balancer.tally(scores, routing)

    scores = torch.rand(32, 8, generator=torch.Generator().manual_seed(0))
    module = Forward()
    experts, tally = torch.export.export(module, (scores,)).module()(scores)
    expected_experts, expected = module(scores)
    assert torch.equal(experts, expected_experts)
    assert isinstance(tally, Tally)
    assert torch.equal(tally.loads, expected.loads)
    assert torch.equal(tally.forwards, expected.forwards)
    assert tally.parts.keys() == expected.parts.keys()
    assert all(torch.equal(tally.parts[name], part) for name, part in expected.parts.items())
    module.balancer.update(tally)
