"""Exact loads by construction: Base and ExpertChoice, for any sizes, padding and targets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.balancing.batch.base import Base
from equipoise.balancing.batch.bip import BIP
from equipoise.balancing.batch.expert_choice import ExpertChoice
from equipoise.balancing.batch.sinkhorn import Sinkhorn
from equipoise.routing import route

exact_methods = pytest.mark.parametrize("method", [Base, ExpertChoice])
all_methods = pytest.mark.parametrize("method", [Base, ExpertChoice, Sinkhorn, BIP])


def skewed(num_tokens=256, num_experts=16, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(num_tokens, num_experts, generator=rng)
        + torch.randn(num_experts, generator=rng)
    ).softmax(-1)


def third(num_tokens):
    return torch.arange(num_tokens) % 3 == 0


@st.composite
def batches(draw):
    """Scores, a mask, K and target weights that K can meet."""
    num_experts = draw(st.integers(1, 9))
    top_k = draw(st.integers(1, num_experts))
    scores = skewed(draw(st.integers(0, 40)), num_experts, draw(st.integers(0, 2**20)))
    share = draw(st.sampled_from([0.0, 0.3, 1.0]))
    mask = torch.rand(len(scores), generator=torch.Generator().manual_seed(len(scores))) < share
    target = draw(
        st.none()
        | st.lists(
            st.sampled_from([1.0, 1.5, 2.0, 0.1]), min_size=num_experts, max_size=num_experts
        )
    )
    if target is not None and max(target) * top_k > sum(target):
        target = None
    return scores, mask, top_k, target


@settings(max_examples=100, deadline=None)
@given(batches(), st.sampled_from([Base, ExpertChoice]))
def test_loads_are_exact(batch, method):
    scores, mask, top_k, target = batch
    balancer = method(scores.shape[1], top_k, target=target)
    loads = balancer.route(scores, mask=mask).loads
    choices = int((~mask).sum()) * top_k
    wanted = balancer.target.loads(torch.tensor(choices))
    assert loads.sum() == choices
    assert ((loads - wanted).abs() < 1).all()
    if target is None and choices % scores.shape[1] == 0:
        assert (loads == choices // scores.shape[1]).all()


@settings(max_examples=60, deadline=None)
@given(batches())
def test_base_experts_are_distinct(batch):
    scores, mask, top_k, target = batch
    routing = Base(scores.shape[1], top_k, target=target).route(scores, mask=mask)
    assert routing.experts.shape == (len(scores), top_k)
    assert (routing.experts.sort(1).values.diff(dim=1) > 0).all()
    assert (routing.gates.diff(dim=1) <= 0).all()  # highest score first
    assert torch.equal(routing.gates, scores.gather(1, routing.experts))
    assert (routing.margin >= 0).all()


def by_a_plain_loop(scores, mask, places):
    """For each expert its best tokens, one after another."""
    taken = {}
    for expert in range(scores.shape[1]):
        tokens = [token for token in range(len(scores)) if not mask[token]]
        tokens.sort(key=lambda token, expert=expert: -float(scores[token, expert]))
        taken[expert] = set(tokens[: places[expert]])
    return taken


@pytest.mark.parametrize("target", [None, [2.0] * 4 + [1.0] * 12])
def test_experts_take_their_best(target):
    scores, mask = skewed(240), third(240)
    routing = ExpertChoice(16, 3, target=target).route(scores, mask=mask)
    expected = by_a_plain_loop(scores, mask, routing.loads.tolist())
    for expert in range(16):
        assert (
            set((routing.experts == expert).any(1).nonzero().flatten().tolist()) == expected[expert]
        )


def test_places_left_over_go_to_the_keenest():
    scores = torch.tensor([[0.9, 0.5, 0.1], [0.8, 0.7, 0.2], [0.1, 0.2, 0.6], [0.3, 0.1, 0.4]])
    routing = ExpertChoice(3, 1).route(scores)  # 4 choices of 3 experts
    assert routing.loads.tolist() == [2, 1, 1]  # 0.8 is the best of the second tokens
    assert routing.experts.tolist() == [[0, 3], [0, 1], [2, 3], [3, 3]]
    assert (routing.gates == torch.tensor([[0.9, 0.0], [0.8, 0.7], [0.6, 0.0], [0.0, 0.0]])).all()


def test_whole_loads_get_no_more():
    scores = torch.tensor([[0.9, 0.1, 0.3], [0.8, 0.2, 0.1]])
    routing = ExpertChoice(3, 1, target=[2.0, 1.0, 1.0]).route(scores)  # 1, 1/2 and 1/2 tokens
    assert routing.loads.tolist() == [1, 0, 1]  # although expert 0 has the best second token


def test_equal_tokens_come_in_order():
    routing = ExpertChoice(4, 1).route(torch.full((64, 4), 0.25))
    assert routing.experts[:16].sort(1).values.tolist() == [[0, 1, 2, 3]] * 16
    assert (routing.experts[16:] == 4).all()


def test_empty_places_have_no_gate():
    scores = skewed()
    routing = ExpertChoice(16, 3).route(scores, renormalize=True, scale=2.0)
    empty = routing.experts == 16
    assert empty.any()
    assert not empty.all(0).any()  # no column without an expert
    assert not routing.gates[empty].any()
    some = ~empty.all(1)
    torch.testing.assert_close(routing.gates.sum(1)[some], torch.full((int(some.sum()),), 2.0))


def test_runner_up_is_the_next_best():
    """At the prices found, every token's experts are its best: margins say by how much."""
    scores = skewed(64, 8)
    held, prices = Base(8, 2)._match(scores, None)
    routing = Base(8, 2).route(scores)
    values = scores.double() - prices
    expected = route(values, 2)
    # the others stand between two experts, and the prices do not say which
    settled = expected.margin > 1e-9
    assert 48 < settled.sum() < 64
    assert torch.equal(routing.runner_up[settled], expected.runner_up[settled])
    assert torch.equal(
        routing.experts.sort(1).values[settled], expected.experts.sort(1).values[settled]
    )
    torch.testing.assert_close(routing.margin.double(), expected.margin, rtol=0, atol=1e-7)
    assert not held.gather(1, routing.runner_up.unsqueeze(1)).any()


def test_margins_are_never_negative():
    """Crowds of nearly equal tokens move together, and some of them then stand on the wrong side by
    less than epsilon.
    """
    rng = torch.Generator().manual_seed(0)
    crowd = torch.randint(0, 8, (512,), generator=rng)
    noise = 0.001 * torch.randn(512, 16, generator=rng)
    scores = (2 * torch.randn(8, 16, generator=rng)[crowd] + noise).softmax(-1)
    balancer = Base(16, 3, tolerance=1e-2)
    held, prices = balancer._match(scores, None)
    values = scores.double() - prices
    ahead = values.masked_fill(~held, torch.inf).amin(1) - values.masked_fill(
        held, -torch.inf
    ).amax(1)
    assert -1e-2 <= ahead.min() < 0
    assert balancer.route(scores).margin.min() == 0


@all_methods
def test_evaluation_is_greedy(method):
    scores, mask = skewed(), third(256)
    routing = method(16, 3).eval().route(scores, mask=mask, renormalize=True, scale=1.5)
    expected = route(scores, 3, mask=mask, renormalize=True, scale=1.5)
    for field in ("experts", "gates", "loads", "mask"):
        assert torch.equal(getattr(routing, field), getattr(expected, field))


@all_methods
def test_padding_takes_no_part(method):
    scores, mask = skewed(), third(256)
    other = torch.where(mask.unsqueeze(1), skewed(seed=1), scores)
    routing, same, without = (
        method(16, 3).route(*given, mask=padding)
        for given, padding in [((scores,), mask), ((other,), mask), ((scores[~mask],), None)]
    )
    assert torch.equal(routing.experts[~mask], same.experts[~mask])
    assert torch.equal(routing.experts[~mask], without.experts)
    assert torch.equal(routing.loads, without.loads)
    assert torch.equal(routing.mask, mask)


@exact_methods
def test_gates_are_like_those_of_route(method):
    scores = skewed().requires_grad_()
    routing = method(16, 3).route(scores.view(4, 64, 16), renormalize=True, scale=2.5)
    filled = routing.experts < 16
    plain = scores.gather(1, routing.experts.clamp_max(15)) * filled
    expected = 2.5 * plain / plain.sum(1, keepdim=True).clamp_min(1e-30)
    torch.testing.assert_close(routing.gates, expected)
    (routing.gates * torch.arange(routing.gates.shape[1])).sum().backward()
    moved = scores.grad != 0
    held = torch.zeros(256, 17, dtype=torch.bool).scatter_(1, routing.experts, True)[:, :16]
    assert moved.any()
    assert not moved[~held].any()


@all_methods
def test_nothing_is_learnt(method):
    balancer, scores = method(16, 3), skewed()
    first = balancer.route(scores)
    tally = balancer.tally(scores, first)
    balancer.update(tally)
    again = balancer.route(scores)
    assert all(
        mine is theirs is None or torch.equal(mine, theirs)
        for mine, theirs in zip(first, again, strict=True)
    )
    assert list(balancer.state_dict()) == ["steps"]
    assert tally.loads.sum() == 256 * 3


@all_methods
@pytest.mark.parametrize(("num_tokens", "masked"), [(0, False), (1, False), (3, False), (8, True)])
def test_small_batches_are_routed(method, num_tokens, masked):
    scores = skewed(num_tokens)
    mask = torch.full((num_tokens,), masked)
    routing = method(16, 2).route(scores, mask=mask, renormalize=True)
    assert routing.loads.sum() == (0 if masked else 2 * num_tokens)
    assert routing.experts.shape[0] == num_tokens
    assert torch.isfinite(routing.gates).all()
    if method in (Base, ExpertChoice):
        assert routing.loads.max() <= 1


@exact_methods
def test_groups_are_refused(method):
    with pytest.raises(ValueError, match="cannot keep to groups"):
        method(16, 2).route(skewed(), groups=(4, 2))
    with pytest.raises(ValueError, match="cannot keep to groups"):
        method(16, 2).eval().route(skewed(), groups=(4, 2))


@all_methods
def test_wrong_input_is_refused(method):
    balancer, scores = method(16, 2), skewed()
    with pytest.raises(ValueError, match="over 8 experts, the balancer over 16"):
        balancer.route(scores[:, :8])
    with pytest.raises(TypeError, match="mask must be bool"):
        balancer.route(scores, mask=torch.ones(256))
    with pytest.raises(ValueError, match="mask has shape"):
        balancer.route(scores, mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"the first at \(token 5, expert 2\)"):
        balancer.route(
            scores.index_put((torch.tensor(5), torch.tensor(2)), torch.tensor(torch.nan))
        )


def test_tolerance_must_be_positive():
    with pytest.raises(ValueError, match="tolerance must be positive, not 0"):
        Base(16, 2, tolerance=0)
