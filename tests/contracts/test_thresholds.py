"""The laws of methods that leave open how many experts a token has.

What does not apply to them: K experts in every token, loads that sum to K T, a shift that may drift
by a constant (one more for all takes more tokens), freezing and settling, which are of shifts.
"""

import copy

import pytest
import torch
from torch.nn.functional import pad

from equipoise.balancing.penalties import AuxiliaryLoss
from tests.contracts.table import (
    NUM_EXPERTS,
    NUM_TOKENS,
    THRESHOLDS,
    TOP_K,
    assert_same_state,
    assert_same_tally,
    exact_scores,
    forward,
    train,
)

every_threshold = pytest.mark.parametrize("row", THRESHOLDS, ids=str)


def trained(row, steps=4):
    balancer = row.make()
    train(balancer, steps)
    return balancer


@every_threshold
def test_gates_are_scores_or_nothing(row):
    scores = exact_scores()
    routing, _ = forward(trained(row), scores)
    assert (routing.experts == NUM_EXPERTS).any()  # some places are empty
    assert torch.equal(routing.gates, pad(scores, (0, 1)).gather(1, routing.experts))


@every_threshold
def test_no_expert_twice_and_empty_places_last(row):
    experts = forward(trained(row), exact_scores())[0].experts
    empty = experts == NUM_EXPERTS
    assert not (empty[:, :-1] & ~empty[:, 1:]).any()
    ordered = experts.sort(1).values
    assert not ((ordered.diff(dim=1) == 0) & (ordered[:, 1:] < NUM_EXPERTS)).any()


@every_threshold
def test_loads_are_those_of_the_places(row):
    scores, mask = exact_scores(), torch.arange(NUM_TOKENS) % 3 == 0
    routing, tally = forward(trained(row), scores, mask)
    found = routing.experts[~mask].flatten().bincount(minlength=NUM_EXPERTS + 1)
    assert torch.equal(routing.loads, found[:NUM_EXPERTS])
    assert torch.equal(tally.loads, routing.loads)


@every_threshold
def test_padding_is_in_no_tally(row):
    scores, mask = exact_scores(), torch.arange(NUM_TOKENS) % 3 == 0
    balancer = trained(row)
    assert_same_tally(forward(balancer, scores, mask)[1], forward(balancer, scores[~mask])[1])


@every_threshold
def test_tokens_depend_on_no_other(row):
    scores, balancer = exact_scores(), trained(row)
    assert balancer.tokens_are_independent
    whole = balancer.route(scores).experts
    parts = [balancer.route(part).experts for part in scores.tensor_split([8, 40, 41])]
    assert torch.equal(torch.cat(parts), whole)


@every_threshold
def test_micro_batches_equal_the_batch(row):
    scores, whole = exact_scores(), trained(row, 2)
    parts = copy.deepcopy(whole)
    _, tally = forward(whole, scores)
    summed = sum(forward(parts, part)[1] for part in scores.split([50, 1, 109]))
    assert_same_tally(summed, tally)
    whole.update(tally)
    parts.update(summed)
    assert_same_state(whole, parts)


@every_threshold
def test_relabelling_relabels_everything(row):
    one, other = row.make(), row.make()
    order = torch.randperm(NUM_EXPERTS, generator=torch.Generator().manual_seed(3))
    names = pad(order, (0, 1), value=NUM_EXPERTS)
    for seed in range(4):
        scores = exact_scores(seed=seed)
        (routing, tally), (relabelled, its) = forward(one, scores), forward(other, scores[:, order])
        # equal leads, which thresholds in bins can make, are in the order of their numbers
        mine, its_own = routing.experts.sort(1).values, names[relabelled.experts].sort(1).values
        assert torch.equal(its_own, mine)
        one.update(tally)
        other.update(its)
        assert torch.equal(other.shift_or_zeros, one.shift_or_zeros[order])


@every_threshold
def test_evaluation_chooses_alike_and_is_pure(row):
    scores, balancer = exact_scores(), trained(row)
    experts, before = balancer.route(scores).experts, copy.deepcopy(balancer)
    routing, tally = forward(balancer.eval(), scores)
    assert torch.equal(routing.experts, experts)
    with pytest.raises(RuntimeError, match="evaluation"):
        balancer.update(tally)
    assert_same_state(balancer, before)


@every_threshold
def test_state_survives_saving(row, tmp_path):
    whole, first, second = trained(row, 6), trained(row, 3), row.make()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    train(second, 3, first_seed=103)
    assert_same_state(whole, second)


@every_threshold
def test_stale_tallies_are_refused(row):
    balancer = row.make()
    _, old = forward(balancer, exact_scores())
    balancer.update(old)
    with pytest.raises(ValueError, match="taken at step 0, but the balancer is at step 1"):
        balancer.update(old)


@every_threshold
def test_penalties_can_be_carried(row):
    scores = exact_scores().view(4, -1, NUM_EXPERTS).requires_grad_()
    for scope in ("batch", "sequence", "global"):
        balancer = trained(row).carry(AuxiliaryLoss(1.0, scope))
        balancer.penalty(scores, balancer.route(scores)).backward()
        assert torch.isfinite(scores.grad).all()


@every_threshold
def test_a_step_needs_no_values(row):
    balancer = row.make().to("meta")
    scores = torch.rand(64, NUM_EXPERTS, device="meta")
    routing, tally = forward(balancer, scores)
    balancer.update(tally)
    assert routing.experts.shape == (64, 2 * TOP_K)
