"""phi-balancing against plain loops, and what it promises."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.balancing.penalties import AuxiliaryLoss, PhiLoss

E, K = 8, 2


def batch(tokens, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(tokens, E, generator=rng) + torch.linspace(0, 2, E)).softmax(-1)


def phi(**options):
    return equipoise.balancer("phi", E, top_k=K, coefficient=1.0, **options)


def learn(balancer, scores, mask=None):
    routing = balancer.route(scores, mask=mask)
    balancer.update(balancer.tally(scores, routing))


def plain(batches, potential, eta):
    """The paper's two lines, token by token in float64: m after all batches but the last, and the
    penalty of the last.
    """
    m = [1 / E] * E
    for scores in batches:
        p = [0.0] * E
        for row in scores.double().tolist():
            p = [a + b / sum(row) / len(scores) for a, b in zip(p, row, strict=True)]
        slope = [math.log(E * x) + 1 if potential == "entropy" else x for x in m]
        value = sum(a * b for a, b in zip(p, slope, strict=True))
        m = [(1 - eta) * a + eta * b for a, b in zip(m, p, strict=True)]
    return value, m


@pytest.mark.parametrize("potential", ["entropy", "euclidean"])
@pytest.mark.parametrize("eta", [0.1, 1.0])
def test_it_is_the_papers(potential, eta):
    batches = [batch(20, seed) for seed in range(4)]
    balancer = phi(potential=potential, eta=eta)
    for scores in batches[:-1]:
        learn(balancer, scores)
    found = balancer.penalty(batches[-1], balancer.route(batches[-1]))
    learn(balancer, batches[-1])
    value, m = plain(batches, potential, eta)
    assert float(found) == pytest.approx(value, rel=1e-5)
    assert balancer.penalties[0].mean_routing.tolist() == pytest.approx(m, rel=1e-6)


def test_gradients_go_through_p_alone():
    scores = batch(20)
    balancer = phi(eta=1.0)
    learn(balancer, scores)
    leaf = batch(20, seed=1).requires_grad_()
    balancer.penalty(leaf, balancer.route(leaf)).backward()
    slope = balancer.penalties[0].gradient()
    share = leaf.detach().clone().requires_grad_()
    ((share / share.sum(-1, keepdim=True)).mean(0) * slope).sum().backward()
    torch.testing.assert_close(leaf.grad, share.grad)
    assert not balancer.penalties[0].mean_routing.requires_grad


@pytest.mark.parametrize("potential", ["entropy", "euclidean"])
def test_nothing_is_pushed_before_the_first_update(potential):
    logits = torch.randn(30, E, generator=torch.Generator().manual_seed(2)).requires_grad_()
    balancer = phi(potential=potential)
    balancer.penalty(logits.softmax(-1), balancer.route(logits.softmax(-1))).backward()
    assert float(logits.grad.abs().max()) < 1e-8


@pytest.mark.parametrize(("potential", "price"), [("entropy", 1.0), ("euclidean", 1 / E)])
def test_balance_costs_as_documented(potential, price):
    rows = torch.stack([torch.linspace(1, 0.1, E).roll(i) for i in range(E)])
    balancer = phi(potential=potential)
    learn(balancer, rows)
    assert float(balancer.penalty(rows, balancer.route(rows))) == pytest.approx(price, rel=1e-6)


@pytest.mark.parametrize("potential", ["entropy", "euclidean"])
def test_unequal_targets_push_nothing_where_they_are_met(potential):
    rows = torch.tensor([[0.5, 0.25, 0.25]]).requires_grad_()
    balancer = equipoise.balancer(
        "phi", 3, top_k=2, coefficient=1.0, potential=potential, eta=1.0, target=[2, 1, 1]
    )
    learn(balancer, rows.detach())
    balancer.penalty(rows, balancer.route(rows)).backward()
    assert float(rows.grad.abs().max()) < 1e-6


def test_descending_it_evens_the_mean_routing():
    logits = torch.nn.Parameter(torch.linspace(0, 2, E))
    noise = torch.randn(64, E, generator=torch.Generator().manual_seed(1))
    balancer = phi(eta=0.2)
    optimizer = torch.optim.SGD([logits], lr=2.0)
    for _ in range(200):
        scores = (logits + noise).softmax(-1)
        routing = balancer.route(scores)
        optimizer.zero_grad()
        balancer.penalty(scores, routing).backward()
        optimizer.step()
        balancer.update(balancer.tally(scores, routing))
    mean = (logits.detach() + noise).softmax(-1).mean(0)
    assert float((mean * E - 1).abs().max()) < 0.02


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.integers(0, 40), max_size=4),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.integers(0, 2**16),
)
def test_cuts_change_no_state(tokens, cuts, padding, seed):
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, E, generator=rng)
    mask = torch.rand(tokens, generator=rng) < padding
    whole, cut, bare = phi(), phi(), phi()
    learn(whole, scores, mask)
    cuts = sorted(cuts)
    pieces = zip(scores.tensor_split(cuts), mask.tensor_split(cuts), strict=True)
    cut.update(sum(cut.tally(part, cut.route(part, mask=hidden)) for part, hidden in pieces))
    learn(bare, scores[~mask])
    for other in (cut, bare):
        assert torch.equal(other.penalties[0].mean_routing, whole.penalties[0].mean_routing)
    assert float(whole.penalties[0].mean_routing.sum()) == pytest.approx(1, abs=1e-6)


def test_it_is_carried_beside_a_shift_and_another_penalty():
    both = equipoise.balancer("quantile", E, top_k=K)
    both.carry(PhiLoss(1e-2), AuxiliaryLoss(1e-3))
    before = both.penalties[0].mean_routing.clone()
    learn(both, batch(40))
    assert both.shift.any()
    assert not torch.equal(both.penalties[0].mean_routing, before)
    other = equipoise.balancer("quantile", E, top_k=K)
    learn(other, batch(40))
    with pytest.raises(ValueError, match="this tally is another rule's"):
        both.update(other.tally(batch(4), other.route(batch(4))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"potential": "hinge"}, "potential must be one of entropy, euclidean, not 'hinge'"),
        ({"eta": 0.0}, "eta must be above 0 and at most 1"),
        ({"eta": "0.1"}, "eta must be above 0 and at most 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        phi(**options)
