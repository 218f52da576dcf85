"""The auction of the BASE layers: against a slow twin bid by bid, and the exact optimum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.balancing.batch.truncated_auction import TruncatedAuction


def skewed(num_tokens, num_experts, seed=0):
    rng = torch.Generator().manual_seed(seed)
    popularity = torch.randn(num_experts, generator=rng)
    return (torch.randn(num_tokens, num_experts, generator=rng) + popularity).softmax(-1)


def twin_winners(scores, top_k, places, rounds):
    """{(expert, token)}: the auction in plain Python, bid by bid."""
    worth = scores.double().t().tolist()
    experts, tokens = range(len(worth)), range(len(worth[0]))
    flat = [each for row in worth for each in row]
    increment = max((max(flat) - min(flat)) / 50, 1e-4)
    prices, won = [0.0] * len(tokens), set()
    for number in range(2 * rounds):
        offers = {}
        for k in experts:
            value = {i: worth[k][i] - prices[i] for i in tokens}
            mine = {i for e, i in won if e == k}
            # set by the round before: early winners never let go, late ones forget the price
            value |= {i: max(flat) if number <= rounds else worth[k][i] for i in mine}
            order = sorted(tokens, key=lambda i: (-value[i], i))
            last = value[order[min(places, len(tokens) - 1)]]
            for i in order[:places]:
                offers[k, i] = value[i] - last + increment
            if number < rounds:
                offers |= {(k, i): increment for i in mine}
        won, full = set(), True
        for i in tokens:
            bidders = [k for k in experts if offers.get((k, i), 0) > 0]
            best = sorted(bidders, key=lambda k: (-offers[k, i], k))[:top_k]
            won |= {(k, i) for k in best}
            full &= len(best) == top_k
            prices[i] += min(offers[k, i] for k in best) if len(best) == top_k else 0.0
        if full:
            break
    return won


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.data())
def test_same_winners_as_bid_by_bid(num_experts, data):
    top_k = data.draw(st.integers(1, num_experts - 1))
    num_tokens = num_experts * data.draw(st.integers(1, 5))
    rounds = data.draw(st.sampled_from([1, 2, 5, 100]))
    scores = skewed(num_tokens, num_experts, data.draw(st.integers(0, 2**20)))
    balancer = TruncatedAuction(num_experts, top_k, rounds=rounds)
    held = balancer._hold_auction(scores.t().double())
    places = num_tokens * top_k // num_experts
    twin = twin_winners(scores, top_k, places, rounds)
    assert {tuple(each) for each in held.nonzero().tolist()} == twin


@pytest.mark.parametrize(("num_experts", "top_k"), [(8, 1), (16, 3), (32, 4)])
def test_ends_with_exact_loads_near_the_optimum(num_experts, top_k):
    scores = skewed(32 * num_experts, num_experts)
    routing = equipoise.balancer("auction", num_experts, top_k=top_k).route(scores)
    assert routing.loads.eq(32 * top_k).all()
    optimum = equipoise.solve(scores.numpy(), top_k).value
    allowed = routing.gates.numel() * float(scores.max() - scores.min()) / 50
    assert optimum - allowed <= float(routing.gates.double().sum()) <= optimum + 1e-4


def test_one_round_is_truncated():
    scores = skewed(64, 8)
    exact, early = (
        equipoise.balancer("auction", 8, top_k=2, rounds=rounds).route(scores).loads
        for rounds in (100, 1)
    )
    assert exact.eq(16).all()
    assert early.sum() == 128
    assert not early.eq(16).all()


def test_padding_bids_for_nothing():
    scores = skewed(96, 8)
    mask = torch.arange(96) % 3 == 0
    scores[mask] = 5.0
    routing = equipoise.balancer("auction", 8, top_k=2).route(scores, mask=mask)
    assert routing.loads.eq(16).all()


def test_rounds_are_checked():
    with pytest.raises(ValueError, match="at least 1 round"):
        equipoise.balancer("auction", 8, top_k=2, rounds=0)
