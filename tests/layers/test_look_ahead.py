"""Looking ahead: a fresh tally of kept inputs, under the weights as they are after the optimizer's
step.
"""

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import equipoise
from equipoise.balancing import method_specs
from equipoise.layers.router import Router
from tests.contracts.table import assert_same_tally
from tests.ranks import on_ranks

E, K, D = 8, 2, 16


def router(name="quantile", look_ahead=64, seed=0):
    torch.manual_seed(seed)
    return Router(D, equipoise.balancer(name, E, top_k=K), look_ahead=look_ahead, init_std=0.5)


def hidden(*shape, seed=1):
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed))


def learn(layer, routed):
    """An optimizer's step that moves the gate a good deal."""
    gates = routed.routing.gates
    (gates * torch.linspace(0, 1, gates.shape[1])).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.5).step()
    layer.zero_grad()


def test_off_by_default():
    assert Router(D, equipoise.balancer("deepseek", E, top_k=K))(hidden(10)).sample is None


def test_evaluation_keeps_nothing():
    assert router().eval()(hidden(10)).sample is None


@pytest.mark.parametrize(("tokens", "kept"), [(30, 30), (64, 64), (65, 33), (1000, 63)])
def test_samples_are_bounded(tokens, kept):
    sample = router()(hidden(tokens)).sample
    assert sample.hidden.shape == (kept, D)
    assert not sample.hidden.requires_grad


def test_before_the_step_it_is_the_tally():
    layer = router()
    routed = layer(hidden(60))
    assert_same_tally(layer.fresh_tally(routed.sample), routed.tally)


def test_after_the_step_it_is_the_next():
    """The fresh tally is what routing the same inputs again would give."""
    layer, x = router(), hidden(60)
    routed = layer(x)
    learn(layer, routed)
    fresh = layer.fresh_tally(routed.sample)
    assert not torch.equal(fresh.loads, routed.tally.loads)
    assert_same_tally(fresh, layer(x).tally)


@pytest.mark.parametrize(
    "name", [spec.name for spec in method_specs() if not spec.within_sequences]
)
def test_every_balancer_takes_it(name):
    layer, x = router(name), hidden(60)
    routed = layer(x)
    learn(layer, routed)
    layer.balancer.update(layer.fresh_tally(routed.sample))
    assert layer.balancer.steps == 1


def test_padding_stays_out():
    layer = router()
    mask = torch.arange(60) >= 40
    assert layer.fresh_tally(layer(hidden(60), mask).sample).loads.sum() == 40 * K


def test_micro_batches_add_up():
    layer, x = router(), hidden(60)
    whole = layer(x).sample
    parts = sum(layer(part).sample for part in x.split(20))
    assert torch.equal(parts.hidden, whole.hidden)
    assert_same_tally(layer.fresh_tally(parts), layer.fresh_tally(whole))


def test_the_caller_cannot_spoil_the_sample():
    layer, x = router(), hidden(60)
    sample = layer(x).sample
    kept = sample.hidden.clone()
    x.zero_()
    assert torch.equal(sample.hidden, kept)


def test_resuming_repeats():
    """Nothing is kept between steps: gate and balancer are all there is to save."""
    whole, first = router(), router()
    for step in range(4):
        if step == 2:
            resumed = router(seed=9)
            resumed.load_state_dict(first.state_dict())
            first = resumed
        for layer in (whole, first):
            routed = layer(hidden(60, seed=step))
            learn(layer, routed)
            layer.balancer.update(layer.fresh_tally(routed.sample))
    assert torch.equal(whole.balancer.shift, first.balancer.shift)
    assert torch.equal(whole.weight, first.weight)


def shard_and_compare(rank):
    """Two ranks under FSDP2, half of the batch each, against one process with all of it."""
    alone, sharded = router(), router()
    fully_shard(sharded)
    for step in range(3):
        x = hidden(60, seed=step)
        whole, mine = alone(x), sharded(x.split(30)[rank])
        learn(alone, whole)
        (mine.routing.gates * torch.linspace(0, 1, K)).sum().mul(
            2
        ).backward()  # FSDP2 takes the mean over ranks
        torch.optim.SGD(sharded.parameters(), lr=0.5).step()
        sharded.zero_grad()
        assert "DTensor" in type(sharded.weight).__name__ or hasattr(sharded.weight, "full_tensor")
        fresh = equipoise.reduce(sharded.fresh_tally(mine.sample))
        assert_same_tally(fresh, alone.fresh_tally(whole.sample))
        alone.balancer.update(alone.fresh_tally(whole.sample))
        sharded.balancer.update(fresh)
        assert torch.equal(sharded.balancer.shift, alone.balancer.shift)


def test_sharded_gates_are_gathered(tmp_path):
    on_ranks(shard_and_compare, 2, tmp_path)
