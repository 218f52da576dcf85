"""Plans over a batch: Sinkhorn's has the marginals it should, BIP's prices are the paper's, and
both make loads more even.
"""

import pytest
import torch

from equipoise.balancing.batch.bip import BIP
from equipoise.balancing.batch.sinkhorn import Sinkhorn, log_odds
from equipoise.routing import metrics, route

both = pytest.mark.parametrize("method", [Sinkhorn, BIP])
score_functions = pytest.mark.parametrize(
    "score", [lambda z: z.softmax(-1), torch.sigmoid], ids=["softmax", "sigmoid"]
)


def logits(num_tokens=2048, num_experts=32):
    rng = torch.Generator().manual_seed(0)
    return torch.randn(num_tokens, num_experts, generator=rng) + torch.randn(
        num_experts, generator=rng
    )


def imbalance(routing, target=None):
    return float(metrics(routing.loads, target)["imbalance"])


@pytest.mark.parametrize("target", [None, [2.0] * 8 + [1.0] * 24])
def test_marginals_are_met(target):
    scores, mask = logits().softmax(-1), torch.arange(2048) % 4 == 0
    balancer = Sinkhorn(32, 4, iterations=100, target=target)
    plan = balancer.plan(scores, mask)[~mask].exp()
    torch.testing.assert_close(plan.sum(1), torch.full((1536,), 4.0), rtol=1e-4, atol=0)
    wanted = balancer.target.loads(torch.tensor(1536 * 4)).float()
    torch.testing.assert_close(plan.sum(0), wanted, rtol=1e-4, atol=0)


def test_rows_do_not_change_the_choice():
    """A constant per token drops out: softmax scores may be renormalised, and logits shifted."""
    balancer = Sinkhorn(32, 4, logits_of=torch.log)
    scores = logits().softmax(-1)
    weighed = scores * torch.linspace(0.5, 2, 2048).unsqueeze(1)
    torch.testing.assert_close(balancer.plan(weighed), balancer.plan(scores), rtol=0, atol=1e-4)


@score_functions
def test_sinkhorn_makes_loads_even(score):
    scores = score(logits())
    assert imbalance(route(scores, 4)) > 0.7
    assert imbalance(Sinkhorn(32, 4).route(scores)) < 0.05
    target = [2.0] * 8 + [1.0] * 24
    assert imbalance(Sinkhorn(32, 4, temperature=0.5, target=target).route(scores), target) < 0.1


@score_functions
def test_bip_makes_loads_more_even(score):
    scores = score(logits())
    none, few, many = (
        route(scores, 4),
        BIP(32, 4, rounds=4).route(scores),
        BIP(32, 4, rounds=32).route(scores),
    )
    assert imbalance(many) < imbalance(few) / 2 < imbalance(none) / 3
    target = [2.0] * 8 + [1.0] * 24
    assert imbalance(BIP(32, 4, rounds=64, target=target).route(scores), target) < 0.1


@pytest.mark.parametrize(
    "score", [lambda z: z.softmax(-1), lambda z: z - 1], ids=["softmax", "negative"]
)
def test_bip_follows_its_paper(score):
    scores, mask = score(logits(60, 8)), torch.arange(60) % 5 == 0
    real = scores[~mask]  # 48 tokens, 2 choices, 8 experts: 12 places
    prices = torch.zeros(8)
    for _ in range(3):
        elsewhere = torch.stack(
            [(row - prices).sort(descending=True).values[2] for row in real]
        ).clamp_min(0)
        prices = torch.stack(
            [(column - elsewhere).sort(descending=True).values[12] for column in real.t()]
        ).clamp_min(0)
    found = BIP(8, 2, rounds=3).plan(scores, mask)
    torch.testing.assert_close(found, scores - prices)
    assert 0 < (prices == 0).sum() < 8  # some experts are dear


@both
def test_adjust_and_route_agree(method):
    scores, balancer = logits(96).softmax(-1).view(2, 48, 32), method(32, 4)
    adjusted = balancer.adjust(scores)
    assert adjusted.shape == scores.shape
    by_hand = route(scores, 4, choose_by=adjusted, groups=(4, 2))
    for mine, theirs in zip(balancer.route(scores, groups=(4, 2)), by_hand, strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs)


@both
def test_gates_are_unshifted(method):
    scores = logits(96).softmax(-1).requires_grad_()
    adjusted = method(32, 4).adjust(scores)
    assert not adjusted.requires_grad
    routing = method(32, 4).route(scores)
    assert torch.equal(routing.gates, scores.gather(1, routing.experts))
    routing.gates.sum().backward()
    assert torch.equal(
        scores.grad != 0, torch.zeros(96, 32, dtype=torch.bool).scatter_(1, routing.experts, True)
    )


@both
def test_half_precision_is_lifted(method):
    scores = logits(96).sigmoid().bfloat16()
    adjusted = method(32, 4).adjust(scores)
    assert adjusted.dtype == torch.float32
    assert torch.equal(adjusted, method(32, 4).adjust(scores.float()))
    assert method(32, 4).adjust(scores.double()).dtype == torch.float64


@both
def test_every_expert_can_be_taken(method):
    scores = logits(20, 4).softmax(-1)
    assert method(4, 4).route(scores).loads.tolist() == [20] * 4


def test_log_odds_undo_the_sigmoid():
    z = torch.linspace(-80, 8, 100)
    torch.testing.assert_close(log_odds(z.sigmoid()), z, rtol=1e-4, atol=1e-3)
    assert torch.isfinite(log_odds(torch.tensor([0.0, 1.0]))).all()


def test_scores_above_one_need_another():
    scores = torch.nn.functional.softplus(logits()).sqrt()  # sqrt_softplus
    with pytest.raises(ValueError, match="log_odds needs scores between 0 and 1"):
        Sinkhorn(32, 4).route(scores)
    back = Sinkhorn(32, 4, logits_of=lambda s: s.square().expm1().log())
    assert imbalance(back.route(scores)) < 0.05


@both
def test_no_value_is_waited_for(method):
    """On the meta device there are no values to look at: what runs there never makes a GPU wait."""
    scores = torch.rand(64, 32, device="meta")
    routing = method(32, 4).route(scores, mask=torch.zeros(64, dtype=torch.bool, device="meta"))
    assert routing.loads.device.type == "meta"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sinkhorn(8, 2, iterations=0), "iterations >= 1"),
        (lambda: Sinkhorn(8, 2, temperature=0.0), "temperature > 0"),
        (lambda: BIP(8, 2, rounds=0), "at least 1 round"),
        (lambda: BIP(8, 2, target=[1.0] * 7), "7 weights"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
