"""Thresholds against sorted scores, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.layers import MoE

E, K, T = 8, 2, 400


def draw(tokens=T, seed=0, skew=0.3):
    rng = torch.Generator().manual_seed(seed)
    return (torch.rand(tokens, E, generator=rng) - skew * torch.linspace(0, 1, E)).clamp_min(0.01)


def learn(balancer, scores, mask=None):
    routing = balancer.route(scores, mask=mask)
    balancer.update(balancer.tally(scores, routing))
    return routing


def plain_choice(row, thresholds, most):
    """A token's experts, best first: those above their thresholds, at most so many."""
    lead = [score - bar for score, bar in zip(row.tolist(), thresholds.tolist(), strict=True)]
    above = sorted((-value, k) for k, value in enumerate(lead) if value > 0)[:most]
    return [k for _, k in above] + [E] * (most - len(above))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.integers(K, E), st.integers(1, 4))
def test_choices_are_those_above_the_thresholds(seed, most, updates):
    balancer = equipoise.balancer("threshold", E, top_k=K, most=most)
    for step in range(updates):
        learn(balancer, draw(60, seed + step))
    scores = draw(40, seed + 99).double()
    found = balancer.route(scores).experts.tolist()
    bars = balancer.thresholds.double()
    assert found == [plain_choice(row, bars, most) for row in scores]


def test_without_a_limit_thresholds_are_averaged_quantiles():
    """The paper's rule by sorting: the average of q so far, which forgets by 0.9."""
    balancer = equipoise.balancer("threshold", E, top_k=K, most=E)
    wanted, weight = torch.zeros(E, dtype=torch.float64), 0.0
    for step in range(12):
        scores = draw(seed=step)
        learn(balancer, scores)
        ordered = scores.double().sort(0, descending=True).values
        rank = T * K // E
        wanted = 0.9 * wanted + 0.1 * (ordered[rank - 1] + ordered[rank]) / 2
        weight = 0.9 * weight + 0.1
        # a bin is 1/256 wide at first
        torch.testing.assert_close(balancer.thresholds.double(), wanted / weight, rtol=0, atol=4e-3)


@pytest.mark.parametrize("target", [None, [2.0, 2.0, 1, 1, 1, 1, 1, 1]])
def test_loads_come_right_and_tokens_differ(target):
    balancer = equipoise.balancer("threshold", E, top_k=K, most=E, target=target)
    for step in range(30):
        learn(balancer, draw(2000, seed=step))
    routing = balancer.route(draw(20_000, seed=999))
    weights = torch.ones(E) if target is None else torch.tensor(target)
    wanted = 20_000 * K * weights / weights.sum()
    assert float((routing.loads / wanted - 1).abs().max()) < 0.06
    sizes = (routing.experts < E).sum(1)
    assert int(sizes.max()) > 2 * K
    assert float((sizes == K).float().mean()) < 0.6


def test_a_limit_cuts_what_is_least_above():
    free, limited = (equipoise.balancer("threshold", E, top_k=K, most=most) for most in (E, 3))
    for step in range(30):
        for each in (free, limited):
            learn(each, draw(seed=step))
    assert torch.equal(free.thresholds, limited.thresholds)
    scores = draw(seed=999)
    whole, cut = free.route(scores).experts, limited.route(scores).experts
    assert torch.equal(cut, whole[:, :3])
    assert limited.route(scores).loads.sum() == (cut < E).sum() < (whole < E).sum()


def test_the_first_batch_is_top_k():
    scores = draw()
    routing = equipoise.balancer("threshold", E, top_k=K).route(scores)
    assert torch.equal(routing.experts[:, :K], scores.topk(K).indices)
    assert routing.experts[:, K:].eq(E).all()
    assert routing.loads.sum() == T * K


def test_thresholds_above_all_scores_come_down():
    balancer = equipoise.balancer("threshold", E, top_k=K)
    learn(balancer, draw())
    balancer.thresholds.fill_(5.0)
    assert balancer.route(draw()).loads.sum() == 0
    for step in range(60):
        learn(balancer, draw(seed=step))
    assert 0.8 * T * K < balancer.route(draw()).loads.sum() < 1.2 * T * K


def test_gates_are_divided_by_the_sum_of_those_taken():
    balancer = equipoise.balancer("threshold", E, top_k=K)
    for step in range(5):
        learn(balancer, draw(seed=step))
    routing = balancer.route(draw(seed=7), renormalize=True, scale=2.0)
    sizes = (routing.experts < E).sum(1)
    assert bool((sizes == 0).any())
    torch.testing.assert_close(routing.gates.sum(1), 2.0 * (sizes > 0).float())


def test_a_layer_leaves_tokens_without_experts_alone():
    torch.manual_seed(0)
    layer = MoE(16, 8, E, K, balancer="threshold", score="sigmoid", init_std=1.0)
    hidden = torch.randn(2, 200, 16)
    layer.router.balancer.update(layer(hidden).tally)
    out = layer(hidden)
    nobody = (out.routing.experts == E).all(1)
    assert 0 < int(nobody.sum()) < 400
    assert torch.equal(out.output.flatten(0, 1)[nobody], torch.zeros(int(nobody.sum()), 16))
    out.output.square().sum().backward()
    assert bool(torch.isfinite(layer.router.weight.grad).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ema": 1.0}, r"ema must be in \[0, 1\)"),
        ({"most": 1}, "most = 1 experts of a token is impossible"),
        ({"most": 9}, "most = 9 experts of a token is impossible"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        equipoise.balancer("threshold", E, top_k=K, **options)


def test_groups_and_other_tallies_are_refused():
    balancer = equipoise.balancer("threshold", E, top_k=K)
    with pytest.raises(ValueError, match="cannot keep to groups"):
        balancer.route(draw(4), groups=(4, 2))
    other = equipoise.balancer("deepseek", E, top_k=K)
    with pytest.raises(ValueError, match="take it by this balancer's own"):
        balancer.update(other.tally(draw(4), other.route(draw(4))))
    with pytest.raises(ValueError, match="scores are over 5 experts"):
        balancer.route(torch.rand(4, 5))
