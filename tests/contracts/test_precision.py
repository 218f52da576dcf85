"""Every buffer says its own dtype and device: neither torch's default dtype, nor being built on the
meta device, nor pickling changes what a rule does.
"""

import importlib
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import equipoise
from tests.contracts.table import (
    NUM_EXPERTS,
    ROWS,
    SOLVERS,
    THRESHOLDS,
    TOP_K,
    assert_same_state,
    exact_scores,
    forward,
    train,
)

ALL = [*ROWS, *SOLVERS, *THRESHOLDS]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def penalty_of(balancer, scores):
    return balancer.penalty(scores, balancer.route(scores), scores.logit())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("row", ALL, ids=str)
def test_the_default_dtype_changes_nothing(row, dtype):
    batches = [exact_scores(seed=seed) for seed in range(6)]
    usual = row.make()
    with default_dtype(dtype):
        other = row.make()
        for scores in batches:
            routing, tally = forward(other, scores)
            other.update(tally)
        assert other.shift_or_zeros.dtype == torch.float32
        assert routing.margin is None or routing.margin.dtype == torch.float32
    for scores in batches:
        usual.update(forward(usual, scores)[1])
    buffers = dict(usual.named_buffers())
    assert {n: b.dtype for n, b in other.named_buffers()} == {
        n: b.dtype for n, b in buffers.items()
    }
    assert_same_state(other, usual)
    assert all(torch.equal(value, buffers[name]) for name, value in other.named_buffers())
    with default_dtype(dtype):
        under = penalty_of(other, batches[0])
    assert under.dtype == torch.float32
    assert torch.equal(under, penalty_of(usual, batches[0]))


@pytest.mark.parametrize("row", ALL, ids=str)
def test_a_layer_can_be_built_on_the_meta_device(row):
    def source(num_experts, top_k):
        return equipoise.balancer(row.name, num_experts, top_k=top_k, **row.options)

    with torch.device("meta"):
        layer = equipoise.MoE(16, 8, NUM_EXPERTS, TOP_K, balancer=source)
    assert {tensor.device.type for tensor in layer.state_dict().values()} == {"meta"}
    # memory of its own holds anything, but a balancer then has its first state, not that
    made = layer.router.balancer
    torch.full((1024,), torch.nan)  # what freed memory may hold
    layer.to_empty(device="cpu")
    new = row.make()
    assert_same_state(made, new)
    train(made, 4)
    train(new, 4)
    assert_same_state(made, new)


@pytest.mark.parametrize("row", ALL, ids=str)
def test_a_balancer_can_be_pickled(row):
    balancer = row.make()
    train(balancer, 3)
    saved = io.BytesIO()
    torch.save(balancer, saved)
    saved.seek(0)
    copies = [
        pickle.loads(pickle.dumps(balancer)),
        torch.load(saved, weights_only=False),
    ]
    train(balancer, 2, first_seed=200)
    for copy in copies:
        train(copy, 2, first_seed=200)
        assert_same_state(copy, balancer)


@pytest.mark.parametrize("row", ALL, ids=str)
@pytest.mark.parametrize("empty", ["no tokens", "all padding"])
def test_a_batch_without_tokens_changes_only_steps(row, empty):
    balancer = row.make()
    train(balancer, 3)
    before = {name: value.clone() for name, value in balancer.state_dict().items()}
    scores = exact_scores()
    mask = torch.ones(len(scores), dtype=torch.bool)
    tokens = slice(0, 0) if empty == "no tokens" else slice(None)
    for _ in range(3):
        balancer.update(forward(balancer, scores[tokens], mask[tokens])[1])
    after = balancer.state_dict()
    assert after.pop("steps") == before.pop("steps") + 3
    changed = [name for name, value in after.items() if not torch.equal(value, before[name])]
    assert not changed


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_empty_batch_changes_nothing_where_values_cannot_be_read(row, monkeypatch):
    module = importlib.import_module("equipoise.balancing.balancer")
    monkeypatch.setattr(module, "is_readable", lambda _: False)
    test_a_batch_without_tokens_changes_only_steps(row, "all padding")
    learnt, usual = row.make(), row.make()
    train(learnt, 3)
    monkeypatch.undo()
    train(usual, 3)
    assert_same_state(learnt, usual)


@pytest.mark.parametrize("row", ALL, ids=str)
def test_a_state_that_does_not_fit_changes_nothing(row):
    balancer, other = row.make(), row.make()
    train(balancer, 2)
    train(other, 5)
    state = other.state_dict()
    last = list(state)[-1]
    state[last] = torch.zeros(NUM_EXPERTS + 1, 2)
    before = {name: value.clone() for name, value in balancer.state_dict().items()}
    with pytest.raises(RuntimeError, match=f"{last} has shape .* nothing of it was loaded"):
        balancer.load_state_dict(state)
    for name, value in balancer.state_dict().items():
        assert torch.equal(value, before[name]), name
