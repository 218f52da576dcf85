"""The laws of methods that solve the batch itself: base, auction, sinkhorn, bip, expert choice."""

import copy

import pytest
import torch

from equipoise.balancing.penalties import AuxiliaryLoss
from tests.contracts.table import (
    NUM_EXPERTS,
    NUM_TOKENS,
    SOLVERS,
    TOP_K,
    assert_same_state,
    assert_same_tally,
    exact_scores,
    forward,
    train,
)

every_solver = pytest.mark.parametrize("row", SOLVERS, ids=str)
EVEN = NUM_TOKENS * TOP_K // NUM_EXPERTS


def real_gates(routing, scores):
    """Gates and the scores they should be; expert E means nobody, with a gate of 0."""
    padded = torch.cat((scores, torch.zeros(len(scores), 1)), 1)
    return routing.gates, padded.gather(1, routing.experts)


@every_solver
def test_gates_are_scores(row):
    scores = exact_scores()
    routing, _ = forward(row.make(), scores)
    assert torch.equal(*real_gates(routing, scores))


@every_solver
def test_loads_are_more_even(row):
    scores = exact_scores()
    solved = forward(row.make(), scores)[0].loads
    greedy = scores.topk(TOP_K).indices.flatten().bincount(minlength=NUM_EXPERTS)
    assert (solved - EVEN).abs().sum() < 0.7 * (greedy - EVEN).abs().sum()
    if row.name in ("base", "auction", "expert_choice"):
        assert solved.eq(EVEN).all()


@every_solver
def test_no_expert_twice(row):
    experts = forward(row.make(), exact_scores())[0].experts.sort(1).values
    assert not ((experts.diff(dim=1) == 0) & (experts[:, 1:] < NUM_EXPERTS)).any()


@every_solver
def test_padding_is_in_no_tally(row):
    scores, mask = exact_scores(), torch.arange(NUM_TOKENS) % 3 == 0
    with_padding, without = (
        forward(row.make(), scores, mask)[1],
        forward(row.make(), scores[~mask])[1],
    )
    assert_same_tally(with_padding, without)
    assert with_padding.loads.sum() == TOP_K * (~mask).sum()


@every_solver
def test_evaluation_is_greedy_and_pure(row):
    scores, balancer = exact_scores(), row.make()
    train(balancer, 2)
    before = copy.deepcopy(balancer)
    routing, tally = forward(balancer.eval(), scores)
    assert torch.equal(routing.experts, scores.topk(TOP_K).indices)
    with pytest.raises(RuntimeError, match="evaluation"):
        balancer.update(tally)
    assert_same_state(balancer, before)


@every_solver
def test_state_survives_saving(row):
    balancer, other = row.make(), row.make()
    train(balancer, 3)
    other.load_state_dict(balancer.state_dict())
    assert_same_state(balancer, other)
    assert other.steps == 3


@pytest.mark.parametrize(
    "row", [row for row in SOLVERS if row.name in ("sinkhorn", "expert_choice")], ids=str
)
def test_relabelling_relabels_loads(row):
    """Not for bip, which makes ties, nor for base where several optima are equally good."""
    scores = exact_scores()
    order = torch.randperm(NUM_EXPERTS, generator=torch.Generator().manual_seed(3))
    assert torch.equal(
        forward(row.make(), scores[:, order])[1].loads, forward(row.make(), scores)[1].loads[order]
    )


@every_solver
def test_stale_tallies_are_refused(row):
    balancer = row.make()
    _, old = forward(balancer, exact_scores())
    balancer.update(old)
    with pytest.raises(ValueError, match="taken at step 0, but the balancer is at step 1"):
        balancer.update(old)


@every_solver
def test_penalties_can_be_carried(row):
    scores = exact_scores().view(4, -1, NUM_EXPERTS).requires_grad_()
    for scope in ("batch", "sequence", "global"):
        balancer = row.make().carry(AuxiliaryLoss(1.0, scope))
        balancer.penalty(scores, balancer.route(scores)).backward()
        assert torch.isfinite(scores.grad).all()
