"""Penalties against plain loops, and what they promise."""

import pytest
import torch

import equipoise
from equipoise.balancing.penalties import AuxiliaryLoss, ZLoss

E, K = 8, 2


def batch(*shape, seed=0):
    return (
        torch.randn(*shape, E, generator=torch.Generator().manual_seed(seed))
        + torch.linspace(0, 1, E)
    ).softmax(-1)


def aux(scores, scope="batch", mask=None, sequences=None, coefficient=1.0, **options):
    balancer = equipoise.balancer(
        "aux", E, top_k=K, coefficient=coefficient, scope=scope, **options
    )
    return balancer.penalty(scores, balancer.route(scores, mask=mask), sequences=sequences)


def plain(rows):
    """The auxiliary loss of a list of score rows, as the papers write it."""
    f, p = [0.0] * E, [0.0] * E
    for row in rows:
        for k in row.topk(K).indices.tolist():
            f[k] += E / (K * len(rows))
        for k in range(E):
            p[k] += float(row[k] / row.sum()) / len(rows)
    return sum(a * b for a, b in zip(f, p, strict=True))


def test_batch_is_the_papers():
    scores = batch(30)
    assert float(aux(scores)) == pytest.approx(plain(list(scores)), rel=1e-5)


def test_sigmoid_scores_are_normalised():
    scores = torch.randn(30, E, generator=torch.Generator().manual_seed(1)).sigmoid()
    assert float(aux(scores)) == pytest.approx(plain(list(scores)), rel=1e-5)


@pytest.mark.parametrize("scope", ["batch", "sequence", "global"])
def test_balance_costs_the_coefficient(scope):
    shifted = torch.stack([torch.linspace(1, 0.1, E).roll(i) for i in range(E)])
    scores = (shifted / shifted.sum(1, keepdim=True)).expand(3, E, E)
    assert float(aux(scores, scope, coefficient=0.25)) == pytest.approx(0.25, rel=1e-6)


def test_unequal_balance_costs_it_too():
    scores = torch.tensor([[0.5, 0.4, 0.1], [0.5, 0.1, 0.4]])  # expert 0 twice, 1 and 2 once
    balancer = equipoise.balancer("aux", 3, top_k=2, coefficient=1.0, target=[2, 1, 1])
    assert float(balancer.penalty(scores, balancer.route(scores))) == pytest.approx(1.0)


def test_sequences_are_apart():
    scores = batch(3, 10)
    expected = sum(plain(list(sequence)) for sequence in scores) / 3
    assert float(aux(scores, "sequence")) == pytest.approx(expected, rel=1e-5)
    named = torch.arange(3).repeat_interleave(10)[torch.randperm(30)]
    packed = scores.flatten(0, 1)
    expected = sum(plain(list(packed[named == i])) for i in range(3)) / 3
    assert float(aux(packed, "sequence", sequences=named)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scope", ["batch", "sequence", "global"])
def test_padding_costs_nothing(scope):
    scores = batch(2, 10)
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[:, 6:] = True
    assert float(aux(scores, scope, mask)) == pytest.approx(
        float(aux(scores[:, :6], scope)), rel=1e-5
    )


def test_empty_sequences_do_not_count():
    scores = batch(2, 10)
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[1] = True
    assert float(aux(scores, "sequence", mask)) == pytest.approx(
        float(aux(scores[:1], "sequence")), rel=1e-5
    )


def test_gradients_push_the_favourite_down():
    logits = (
        torch.randn(200, E, generator=torch.Generator().manual_seed(0)) + torch.linspace(0, 2, E)
    ).requires_grad_()
    aux(logits.softmax(-1)).backward()
    slope = logits.grad.sum(0)
    assert slope[-1] > 0 > slope[0]


def global_step(balancer, parts):
    """One optimizer step's penalty as trainings take it, the mean over micro-batches; then the
    update.
    """
    penalties, tallies = [], []
    for part in parts:
        routing = balancer.route(part)
        penalties.append(balancer.penalty(part, routing))
        tallies.append(balancer.tally(part, routing))
    balancer.update(sum(tallies))
    return sum(penalties) / len(penalties)


def test_global_does_not_see_the_cuts():
    whole, cut = (
        equipoise.balancer("aux", E, top_k=K, scope="global", coefficient=1.0) for _ in range(2)
    )
    for seed in range(3):
        scores = batch(40, seed=seed)
        one, four = global_step(whole, [scores]), global_step(cut, scores.split(10))
        torch.testing.assert_close(one, four)
    first, last = batch(40, seed=1), batch(40, seed=2)
    loads = torch.bincount(first.topk(K).indices.flatten(), minlength=E)
    torch.testing.assert_close(one, ((loads / 10) * last.mean(0)).sum())  # f of the batch before


def test_global_remembers_through_saving():
    balancer, other = (equipoise.balancer("aux", E, top_k=K, scope="global") for _ in range(2))
    global_step(balancer, [batch(40)])
    other.load_state_dict(balancer.state_dict())
    assert torch.equal(other.penalties[0].frequencies, balancer.penalties[0].frequencies)
    assert not torch.equal(other.penalties[0].frequencies, torch.ones(E))


def test_z_loss_is_its_formula():
    logits = torch.randn(20, E, generator=torch.Generator().manual_seed(0))
    balancer = equipoise.balancer("z_loss", E, top_k=K, coefficient=0.5)
    mask = torch.arange(20) >= 15
    found = balancer.penalty(
        logits.softmax(-1), balancer.route(logits.softmax(-1), mask=mask), logits=logits
    )
    expected = 0.5 * logits[:15].exp().sum(1).log().square().mean()
    torch.testing.assert_close(found, expected)


def test_z_loss_asks_for_logits():
    balancer = equipoise.balancer("z_loss", E, top_k=K)
    with pytest.raises(ValueError, match="logits"):
        balancer.penalty(batch(4), balancer.route(batch(4)))


def test_shifts_carry_penalties():
    scores = batch(2, 10)
    both = equipoise.balancer("deepseek", E, top_k=K).carry(
        AuxiliaryLoss(1e-4, "sequence"), ZLoss(1e-3)
    )
    routing = both.route(scores)
    found = both.penalty(scores, routing, logits=scores.log())
    z = 1e-3 * scores.log().logsumexp(-1).square().mean()
    torch.testing.assert_close(found, aux(scores, "sequence", coefficient=1e-4) + z)
    both.update(both.tally(scores, routing))
    assert both.shift.any()


def test_missing_sequences_are_asked_for():
    with pytest.raises(ValueError, match="must know the sequences"):
        aux(batch(10), "sequence")
    with pytest.raises(ValueError, match="sequences has shape"):
        aux(batch(10), "sequence", sequences=torch.zeros(5, dtype=torch.int64))


def test_unknown_scopes_are_refused():
    with pytest.raises(
        ValueError, match="scope must be one of batch, sequence, global, not 'layer'"
    ):
        AuxiliaryLoss(1e-3, "layer")


@pytest.mark.parametrize("name", ["aux", "z_loss"])
@pytest.mark.parametrize("coefficient", [float("nan"), float("inf"), -1, "1e-3", None])
def test_coefficients_that_are_none_are_refused(name, coefficient):
    with pytest.raises(ValueError, match=f"coefficient of {name} must be a finite number"):
        equipoise.balancer(name, 4, top_k=2, coefficient=coefficient)
