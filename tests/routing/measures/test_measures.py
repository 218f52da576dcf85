"""Measures of devices, sequences, capacity and churn, against tokens dispatched one by one."""

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise import (
    changed_choices,
    churn,
    device_loads,
    dropped_choices,
    dropped_share,
    idle_share,
    load_metrics,
    sequence_loads,
)
from tests.routing.measures import one_by_one

FACTORS = [Fraction(1, 2), Fraction(1), Fraction(11, 10), Fraction(5, 4), Fraction(3)]


@st.composite
def forwards(draw):
    """A few forwards of the same experts, with padding and, now and then, empty choices."""
    num_experts = draw(st.integers(1, 6))
    top_k = draw(st.integers(1, num_experts))
    row = st.permutations(range(num_experts)).map(lambda order: list(order[:top_k]))
    emptied = st.tuples(row, st.integers(0, 9)).map(
        lambda pair: pair[0] if pair[1] else [num_experts] * top_k
    )
    made = []
    for _ in range(draw(st.integers(1, 3))):
        choices = draw(st.lists(emptied, min_size=1, max_size=14))
        padding = draw(st.lists(st.booleans(), min_size=len(choices), max_size=len(choices)))
        made.append(one_by_one.Forward(choices, padding, num_experts))
    return made


def arrays(forward):
    return torch.tensor(forward.choices), torch.tensor(forward.padding)


def loads_of(forward):
    return sequence_loads(*arrays(forward)[:1], forward.num_experts, 10**6, mask=arrays(forward)[1])


@settings(deadline=None, max_examples=80)
@given(forwards(), st.data())
def test_devices_work_and_wait_as_simulated(made, data):
    num_experts = made[0].num_experts
    places = data.draw(st.lists(st.integers(0, 3), min_size=num_experts, max_size=num_experts))
    cluster = one_by_one.Cluster(places)
    simulated = [cluster.run(forward) for forward in made]
    loads = torch.cat([loads_of(forward) for forward in made])
    assert device_loads(loads, places).tolist() == simulated
    assert float(idle_share(loads, places)) == pytest.approx(float(cluster.idle), abs=1e-12)


@settings(deadline=None, max_examples=80)
@given(forwards(), st.data())
def test_sequences_are_counted_apart(made, data):
    forward = made[0]
    experts, mask = arrays(forward)
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=len(mask), max_size=len(mask)))
    length = data.draw(st.integers(1, 5))
    blocks = [token // length for token in range(len(mask))]
    for given_as, sequence_of in ((torch.tensor(numbers), numbers), (length, blocks)):
        found = sequence_loads(experts, forward.num_experts, given_as, mask=mask)
        simulated = one_by_one.sequence_counts(forward, sequence_of)
        assert found.shape == (max(sequence_of) + 1, forward.num_experts)
        for sequence, row in enumerate(found.tolist()):
            counts = simulated.get(sequence, {})
            assert row == [counts.get(expert, 0) for expert in range(forward.num_experts)]


@settings(deadline=None, max_examples=120)
@given(forwards(), st.sampled_from(FACTORS), st.data())
def test_the_same_choices_are_dropped(made, factor, data):
    lost = 0
    for forward in made:
        experts, mask = arrays(forward)
        # a coarse grid: equal scores are frequent
        level = st.integers(0, 2).map(lambda whole: whole / 2)
        scores = [[data.draw(level) for _ in row] for row in forward.choices]
        lost += len(one_by_one.dropped(forward, factor, "position"))
        for by in ("position", "choice", "score"):
            given_scores = scores if by == "score" else None
            found = dropped_choices(
                experts,
                forward.num_experts,
                float(factor),
                by=by,
                scores=None if given_scores is None else torch.tensor(scores),
                mask=mask,
            )
            pairs = {tuple(pair) for pair in found.nonzero().tolist()}
            assert pairs == one_by_one.dropped(forward, factor, by, given_scores)
    loads = torch.cat([loads_of(forward) for forward in made])
    share = lost / max(1, int(loads.sum()))
    assert float(dropped_share(loads, float(factor))) == pytest.approx(share, abs=1e-12)


@settings(deadline=None, max_examples=80)
@given(forwards(), st.randoms())
def test_changed_choices_are_differences_of_multisets(made, rng):
    """Of multisets, since empty choices are all marked alike."""
    experts, mask = arrays(made[0])
    width, num_experts = experts.shape[1], made[0].num_experts
    after = torch.tensor([rng.sample(range(num_experts), width) for _ in made[0].choices])
    for choices in (experts, after):
        for row in choices:
            if rng.random() < 0.4:
                row[: rng.randint(0, width)] = num_experts
    expected = [
        sum((Counter(one) - Counter(other)).values())
        for one, other in zip(experts.tolist(), after.tolist(), strict=True)
    ]
    assert changed_choices(experts, after).tolist() == expected
    assert changed_choices(after, experts).tolist() == expected
    counted = [bool(n) for n, padded in zip(expected, made[0].padding, strict=True) if not padded]
    share = sum(counted) / max(1, len(counted))
    assert float(churn(experts, after, mask=mask)) == pytest.approx(share, abs=1e-12)
    if not mask.any():
        assert churn(experts, after) == churn(experts, after, mask=mask)


def test_order_within_a_token_is_no_churn():
    assert churn(torch.tensor([[0, 1, 2]]), torch.tensor([[2, 0, 1]])) == 0


def test_who_is_dropped_depends_on_the_order():
    """Three tokens for two places; the last one scores highest, and chooses first what matters."""
    experts = torch.tensor([[1, 0], [2, 0], [0, 3]])
    scores = torch.tensor([[0.9, 0.2], [0.8, 0.1], [0.7, 0.3]])
    lost = {
        by: dropped_choices(
            experts, 4, 4 / 3, by=by, scores=scores if by == "score" else None
        ).nonzero()
        for by in ("position", "choice", "score")
    }
    assert lost["position"].tolist() == [[2, 0]]
    assert lost["choice"].tolist() == [[1, 1]]
    assert lost["score"].tolist() == [[1, 1]]


def test_a_capacity_of_each_rank_drops_more_than_of_their_sum():
    """Why the loads of ranks must be counted apart: two that are uneven in opposite ways."""
    experts = torch.tensor([[0]] * 4 + [[1]] * 4)
    ranks = sequence_loads(experts, 2, sequences=4)
    assert float(dropped_share(ranks, 1.0)) == 0.5
    assert float(dropped_share(ranks.sum(0), 1.0)) == 0.0


def test_even_experts_have_even_devices_but_not_the_reverse():
    loads = torch.tensor([[5, 15, 12, 8]])
    devices = device_loads(loads, 2)
    assert load_metrics(devices)["max_violation"].tolist() == [0.0]
    assert load_metrics(loads)["max_violation"].tolist() == [0.5]
    assert idle_share(loads, 2) == 0


def test_a_capacity_that_means_a_whole_number_is_one():
    """1.1 * 100 is 110.00000000000001 in float64: with 111 places nothing would be dropped."""
    assert float(dropped_share([111, 89], 1.1)) == pytest.approx(1 / 200)


def test_no_tokens_drop_and_switch_nothing():
    empty = torch.zeros(0, 2, dtype=torch.int64)
    assert dropped_share([0, 0], 1.0) == 0
    assert dropped_choices(empty, 4, 1.0).shape == (0, 2)
    assert churn(empty, empty) == 0
    assert sequence_loads(empty, 3, torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
    assert sequence_loads(empty, 3, 4).shape == (0, 3)


def test_routing_feeds_every_measure():
    """As a user has them: padded scores through route()."""
    scores = torch.rand(64, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(64) % 16 > 11
    routing = equipoise.route(scores, 2, mask=mask)
    apart = sequence_loads(routing.experts, 8, sequences=16, mask=routing.mask)
    assert torch.equal(apart.sum(0), routing.loads)
    assert apart.sum(1).tolist() == [24] * 4
    lost = dropped_choices(
        routing.experts, 8, 1.0, by="score", scores=routing.gates, mask=routing.mask
    )
    assert float(lost.sum() / routing.loads.sum()) == pytest.approx(
        float(dropped_share(routing.loads, 1.0))
    )
    assert not lost[mask].any()
    kept = torch.where(lost, 0, routing.gates)[~mask]
    assert kept.sum() < routing.gates[~mask].sum()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dropped_share([1, 2], 0.0), "capacity_factor must be above 0"),
        (lambda: dropped_share([1, 2], float("nan")), "capacity_factor must be above 0"),
        (
            lambda: dropped_choices(torch.zeros(2, 1, dtype=torch.long), 2, 1.0, by="scores"),
            "no order 'scores' .did you mean 'score'",
        ),
        (
            lambda: dropped_choices(torch.zeros(2, 1, dtype=torch.long), 2, 1.0, by="score"),
            "by='score' needs scores",
        ),
        (
            lambda: dropped_choices(
                torch.zeros(2, 1, dtype=torch.long), 2, 1.0, scores=torch.zeros(2, 1)
            ),
            "by='position' takes no scores",
        ),
        (
            lambda: dropped_choices(
                torch.zeros(2, 1, dtype=torch.long), 2, 1.0, by="score", scores=torch.zeros(2, 2)
            ),
            r"scores have shape \(2, 2\), the choices \(2, 1\)",
        ),
        (
            lambda: sequence_loads(torch.zeros(2, 1, dtype=torch.long), 2, 0),
            "at least one token, not 0",
        ),
        (
            lambda: sequence_loads(torch.zeros(2, 1, dtype=torch.long), 2, torch.tensor([0, 1, 1])),
            r"whole numbers of shape \(2,\), one for each token",
        ),
        (
            lambda: sequence_loads(torch.zeros(2, 1, dtype=torch.long), 2, torch.tensor([-1, 1])),
            "numbered from 0, not from -1",
        ),
        (
            lambda: sequence_loads(
                torch.zeros(2, 1, dtype=torch.long), 2, 1, mask=torch.ones(3, dtype=torch.bool)
            ),
            r"mask has shape \(3,\)",
        ),
        (
            lambda: sequence_loads(torch.tensor([[0, 4]]), 3, 1),
            "experts are 0 to 2, or 3 for none, but 0 to 4 are given",
        ),
        (
            lambda: dropped_choices(torch.tensor([[0, -1]]), 3, 1.0),
            "experts are 0 to 2, or 3 for none, but -1 to 0 are given",
        ),
        (
            lambda: dropped_choices(torch.zeros(2, 1), 3, 1.0),
            r"whole numbers of shape \(tokens, top_k\), not torch.float32 of shape \(2, 1\)",
        ),
        (
            lambda: sequence_loads(torch.zeros(2, dtype=torch.long), 3, 1),
            r"not torch.int64 of shape \(2,\): pass Routing.experts",
        ),
        (
            lambda: churn(torch.zeros(2, 1), torch.zeros(2, 2)),
            r"not \(2, 1\) and \(2, 2\)",
        ),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("devices", [2.5, True, None])
def test_devices_that_are_no_number_are_named(devices):
    with pytest.raises(TypeError, match="devices is a whole number, or the device of every"):
        device_loads([1, 2, 3, 4], devices)
    with pytest.raises(TypeError, match=r"sequences is their length, .* not 2\.5"):
        sequence_loads(torch.zeros(4, 1, dtype=torch.int64), 2, sequences=2.5)


def test_measures_stay_on_the_device_of_the_choices():
    """The meta device stands in for a GPU: a value that was looked at would be an error."""
    experts = torch.zeros(6, 2, dtype=torch.int64, device="meta")
    mask = torch.zeros(6, dtype=torch.bool, device="meta")
    found = [
        sequence_loads(experts, 4, 3, mask=mask),
        dropped_choices(experts, 4, 1.0, mask=mask),
        dropped_choices(experts, 4, 1.0, by="score", scores=experts.double()),
        changed_choices(experts, experts),
        churn(experts, experts, mask=mask),
        device_loads(torch.ones(3, 4, device="meta"), [0, 0, 1, 1]),
        dropped_share(torch.ones(3, 4, device="meta"), 1.0),
    ]
    assert {each.device.type for each in found} == {"meta"}
