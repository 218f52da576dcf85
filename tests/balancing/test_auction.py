"""The assignment is feasible whatever the scores, and its own prices prove how good it is."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.balancing.batch.auction import _epsilon_schedule, asking_prices, assign

TOLERANCE = 1e-4


def even(num_tokens, num_experts, top_k):
    """(least, most) of even loads."""
    total = torch.full((num_experts,), num_tokens * top_k)
    return total // num_experts, -(-total // num_experts)


def missed(scores, found, top_k, least, most):
    """An upper bound of what the assignment misses, by weak duality: any prices bound the optimum
    from above.
    """
    values, prices = scores.double() - found.prices, found.prices
    # the dual of total = T K with loads in [least, most]: dear places beyond the least go first
    beyond = (
        ((most - least) * prices)
        .sort(descending=True)
        .values[: len(scores) * top_k - int(least.sum())]
    )
    bound = values.topk(top_k, dim=1).values.sum() + (least * prices).sum() + beyond.sum()
    return float(bound - scores.double()[found.held].sum())


def assert_feasible(found, top_k, least, most):
    loads = found.held.sum(0)
    assert (found.held.sum(1) == top_k).all()
    assert ((least <= loads) & (loads <= most)).all()


@st.composite
def batches(draw):
    num_experts = draw(st.integers(2, 10))
    top_k = draw(st.integers(1, num_experts))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    scores = torch.randn(draw(st.integers(0, 60)), num_experts, generator=rng)
    scores = scores + draw(st.sampled_from([0.0, 3.0])) * torch.randn(num_experts, generator=rng)
    levels = draw(st.sampled_from([0, 1, 4, None]))  # few levels: ties everywhere; 0: all the same
    return scores if levels is None else (scores * levels).round(), top_k


@settings(max_examples=200, deadline=None)
@given(batches())
def test_bounds_always_hold(batch):
    scores, top_k = batch
    least, most = even(*scores.shape, top_k)
    found = assign(scores, top_k, least, most, TOLERANCE)
    assert_feasible(found, top_k, least, most)
    if top_k < scores.shape[1] and len(scores):
        epsilon = TOLERANCE * float(scores.max() - scores.min())
        assert (
            missed(scores, found, top_k, least, most)
            <= (scores.shape[0] * top_k + scores.shape[1]) * epsilon + 1e-9
        )


def crowds(name, num_tokens=512, num_experts=16):
    """Scores that leave asking prices helpless: tokens come in crowds that are equal, or nearly."""
    rng = torch.Generator().manual_seed(0)
    kinds = 2 * torch.randn(8, num_experts, generator=rng)
    kind = torch.randint(0, 8, (num_tokens,), generator=rng)
    noise = 0.01 * torch.randn(num_tokens, num_experts, generator=rng)
    made = {
        "near": kinds[kind] + noise,
        "equal": kinds[kind],
        "one": kinds[:1].expand(num_tokens, -1),
        "flat": 0 * noise,
    }
    return made[name].softmax(-1)


@pytest.mark.parametrize("name", ["near", "equal", "one", "flat"])
def test_crowds_are_split(name):
    scores = crowds(name)
    least, most = even(*scores.shape, 3)
    found = assign(scores, 3, least, most, TOLERANCE)
    assert_feasible(found, 3, least, most)
    assert found.held.sum(0).tolist() == [96] * 16
    epsilon = TOLERANCE * float(scores.max() - scores.min())
    assert missed(scores, found, 3, least, most) <= 512 * 3 * epsilon + 1e-12


def test_nothing_is_missed_without_ties():
    rng = torch.Generator().manual_seed(0)
    scores = (torch.randn(2048, 32, generator=rng) + 0.7 * torch.randn(32, generator=rng)).softmax(
        -1
    )
    least, most = even(2048, 32, 4)
    found = assign(scores, 4, least, most, TOLERANCE)
    assert missed(scores, found, 4, least, most) < 1e-6  # of a total of 900


def test_asking_prices_nearly_balance():
    rng = torch.Generator().manual_seed(0)
    scores = (
        (torch.randn(4096, 32, generator=rng) + torch.randn(32, generator=rng)).softmax(-1).double()
    )
    least, most = even(4096, 32, 4)
    prices = asking_prices(scores.t().contiguous(), 4, least, most)
    loads = torch.bincount((scores - prices).topk(4).indices.flatten(), minlength=32)
    greedy = torch.bincount(scores.topk(4).indices.flatten(), minlength=32)
    assert (loads - most).clamp_min(0).sum() <= 32
    assert (greedy - most).clamp_min(0).sum() > 4000


def test_unequal_bounds_are_kept():
    scores = torch.rand(40, 4, generator=torch.Generator().manual_seed(2))
    least, most = torch.tensor([40, 0, 13, 26]), torch.tensor([40, 0, 14, 27])
    found = assign(scores, 2, least, most, TOLERANCE)
    assert_feasible(found, 2, least, most)
    assert found.held[:, 0].all()
    assert not found.held[:, 1].any()


def test_the_same_again():
    scores = crowds("near")
    first, second = (assign(scores, 3, *even(*scores.shape, 3), TOLERANCE) for _ in range(2))
    assert torch.equal(first.held, second.held)
    assert torch.equal(first.prices, second.prices)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
def test_epsilon_only_comes_down_from_a_hundredth_to_the_tolerance(tolerance):
    """Of the scores' range; a larger one after a smaller would undo what the smaller has found."""
    epsilons = list(_epsilon_schedule(True, tolerance, score_range=2.0))
    assert epsilons[0] == 2 * 1e-2
    assert epsilons[-1] == 2 * tolerance
    assert all(after < before for before, after in pairwise(epsilons))
    assert list(_epsilon_schedule(False, tolerance, score_range=2.0)) == [2 * tolerance]
