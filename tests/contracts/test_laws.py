"""What every balancer promises, on scores without ties that float32 holds exactly."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import equipoise
from tests.contracts.table import (
    NUM_EXPERTS,
    NUM_TOKENS,
    ROWS,
    SOLVERS,
    THRESHOLDS,
    TOP_K,
    assert_same_state,
    assert_same_tally,
    exact_scores,
    exact_shift,
    forward,
    train,
)

every_balancer = pytest.mark.parametrize("row", ROWS, ids=str)


@pytest.fixture
def scores():
    return exact_scores()


def test_table_is_complete():
    assert {row.name for row in ROWS + SOLVERS + THRESHOLDS} == set(equipoise.balancers())


@every_balancer
def test_gates_ignore_the_shift(row, scores):
    balancer = row.make()
    balancer.shift.copy_(exact_shift())
    routing, _ = forward(balancer, scores)
    assert torch.equal(routing.gates, scores.gather(1, routing.experts))
    assert not torch.equal(routing.experts, scores.topk(TOP_K).indices)  # the shift did choose


@every_balancer
def test_a_constant_changes_nothing(row, scores):
    here, there = row.make(), row.make()
    here.shift.copy_(exact_shift())
    there.shift.copy_(exact_shift() + 0.5)
    (routing, tally), (other_routing, other_tally) = forward(here, scores), forward(there, scores)
    for mine, theirs in zip(routing, other_routing, strict=True):
        exact = mine is None or not mine.is_floating_point() or not row.rounds
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0 if exact else 1e-6)
    if not row.rounds:
        assert_same_tally(tally, other_tally)


# a target names experts: those rows are in test_relabelling_with_targets
@pytest.mark.parametrize(
    "row", [row for row in ROWS if "target" not in row.options and not row.blocks], ids=str
)
def test_relabelling_relabels_everything(row):
    relabelled, balancer = row.make(), row.make()
    order = torch.randperm(NUM_EXPERTS, generator=torch.Generator().manual_seed(3))
    for seed in range(4):
        batch = exact_scores(seed=seed)
        routing, tally = forward(balancer, batch)
        other_routing, other_tally = forward(relabelled, batch[:, order])
        assert torch.equal(order[other_routing.experts], routing.experts)
        assert torch.equal(other_tally.loads, tally.loads[order])
        balancer.update(tally)
        relabelled.update(other_tally)
        # a sum over experts in another order may round otherwise: curvature's solve, in the last
        # digit
        torch.testing.assert_close(
            relabelled.shift, balancer.shift[order], rtol=0, atol=1e-7 if row.solves else 0
        )


@every_balancer
def test_balanced_loads_move_nothing(row):
    balancer = row.make()
    train(balancer, 3)
    weights = balancer.target.weights
    even = (NUM_TOKENS * TOP_K * weights / weights.sum()).long()
    assert even.sum() == NUM_TOKENS * TOP_K
    before = balancer.shift.clone()
    _, tally = forward(balancer, exact_scores())
    tally.loads.copy_(even)
    balancer.update(tally)
    assert balancer.moves_when_balanced is row.moves_when_balanced
    if not row.moves_when_balanced:
        assert torch.equal(balancer.shift, before)


@every_balancer
def test_unbalanced_loads_move_the_shift(row):
    balancer = row.make()
    train(balancer, 1)
    assert bool((balancer.shift != 0).any()) is row.moves


@every_balancer
def test_loads_sum_to_real_tokens(row, scores):
    mask = torch.arange(NUM_TOKENS) % 3 == 0
    routing, tally = forward(row.make(), scores, mask)
    assert tally.loads.sum() == TOP_K * (~mask).sum()
    if not row.follows:
        without_padding, _ = forward(row.make(), scores[~mask])
        assert torch.equal(routing.loads, without_padding.loads)


@pytest.mark.parametrize("row", [row for row in ROWS if not (row.samples or row.follows)], ids=str)
def test_padding_is_in_no_tally(row, scores):
    mask = torch.arange(NUM_TOKENS) % 3 == 0
    _, with_padding = forward(row.make(), scores, mask)
    _, without = forward(row.make(), scores[~mask])
    assert_same_tally(with_padding, without)


@every_balancer
def test_state_survives_saving(row, tmp_path):
    whole, first = row.make(), row.make()
    train(whole, 6)
    train(first, 3)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = row.make()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    train(second, 3, first_seed=103)
    assert_same_state(whole, second)


@every_balancer
def test_evaluation_changes_nothing(row, scores):
    balancer = row.make()
    train(balancer, 2)
    before = copy.deepcopy(balancer)
    balancer.eval()
    _, tally = forward(balancer, scores)
    assert_same_state(balancer, before)
    with pytest.raises(RuntimeError, match="evaluation"):
        balancer.update(tally)
    assert_same_state(balancer, before)


@every_balancer
def test_micro_batches_equal_the_batch(row, scores):
    whole, parts = row.make(), row.make()
    train(whole, 2)
    train(parts, 2)
    _, tally = forward(whole, scores)
    cuts = [48, 8, 104] if row.samples or row.follows else [50, 1, 109]
    summed = sum(forward(parts, part)[1] for part in scores.split(cuts))
    assert_same_tally(summed, tally)
    assert torch.equal(summed.forwards.sum(0), tally.loads)
    assert len(summed.forwards) == 3
    whole.update(tally)
    parts.update(summed)
    assert_same_state(whole, parts)


@every_balancer
def test_bf16_scores_give_the_same_shift(row):
    precise, rounded = row.make(), row.make()
    rounded.bfloat16()
    for seed in range(3):
        batch = exact_scores(seed=seed, levels=256)  # bf16 holds these exactly
        precise.update(forward(precise, batch)[1])
        with torch.autocast("cpu", torch.bfloat16):
            rounded.update(forward(rounded, batch.bfloat16())[1])
    assert rounded.shift.dtype == torch.float32
    assert_same_state(precise, rounded)


@every_balancer
@pytest.mark.parametrize(
    "cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, lambda m: m.to(torch.bfloat16)]
)
def test_casting_the_model_keeps_the_state(row, cast):
    balancer = row.make()
    train(balancer, 2)
    before = copy.deepcopy(balancer)
    cast(nn.ModuleDict({"layer": nn.ModuleDict({"balancer": balancer})}))
    assert_same_state(balancer, before)
    assert all(
        mine.dtype == theirs.dtype
        for mine, theirs in zip(balancer.buffers(), before.buffers(), strict=True)
    )


@every_balancer
def test_state_of_other_experts_is_refused(row):
    other = equipoise.balancer(row.name, NUM_EXPERTS // 2, top_k=TOP_K)
    balancer = row.make()
    train(balancer, 2)
    before = copy.deepcopy(balancer)
    with pytest.raises(
        RuntimeError, match=r"shift has shape \(8,\) in this state and \(16,\) here"
    ):
        balancer.load_state_dict(other.state_dict())
    assert torch.equal(balancer.shift, before.shift)
    assert torch.equal(balancer.steps, before.steps)


@every_balancer
def test_stale_tallies_are_refused(row, scores):
    balancer = row.make()
    _, old = forward(balancer, scores)
    balancer.update(old)
    _, new = forward(balancer, scores)
    with pytest.raises(ValueError, match="steps 0 and 1"):
        old + new
    with pytest.raises(ValueError, match="taken at step 0, but the balancer is at step 1"):
        balancer.update(old)


@every_balancer
def test_an_empty_batch_moves_nothing(row, scores):
    balancer = row.make()
    everything = torch.ones(NUM_TOKENS, dtype=torch.bool)
    _, tally = forward(balancer, scores, everything)
    balancer.update(tally)
    assert not balancer.shift.any()
    assert torch.isfinite(balancer.shift).all()
    assert not any(buffer.isnan().any() for buffer in balancer.buffers())


@every_balancer
def test_freezing_holds_the_shift(row):
    balancer = row.make()
    train(balancer, 2)
    before = balancer.shift.clone()
    balancer.freeze()
    train(balancer, 2)
    assert torch.equal(balancer.shift, before)
    balancer.unfreeze()
    train(balancer, 1)
    assert torch.equal(balancer.shift, before) is not row.moves


@pytest.mark.parametrize("row", [row for row in ROWS if row.make().tokens_are_independent], ids=str)
def test_independent_tokens_choose_alike_in_parts(row, scores):
    """Parts of a forward then choose, and pay, what the whole does, wherever it is cut."""
    balancer = row.make()
    balancer.shift.copy_(exact_shift())
    whole = balancer.route(scores)
    parts = [balancer.route(part) for part in scores.tensor_split([8, 40, 41])]
    assert torch.equal(torch.cat([part.experts for part in parts]), whole.experts)
    assert torch.equal(sum(part.loads for part in parts), whole.loads)
    assert float(balancer.penalty(scores, whole)) == 0


@pytest.mark.parametrize("row", SOLVERS, ids=str)
def test_tokens_depend_on_each_other_in_batch_solvers(row):
    assert not row.make().tokens_are_independent
