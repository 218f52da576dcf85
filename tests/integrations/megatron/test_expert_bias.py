"""megatron-core's own function as the judge: deepseek takes the same steps, on two gloo ranks.

What newer releases do, which want Python 3.12 and a GPU's libraries, is tried on a stand-in.
"""

import importlib
import sys
import types

import pytest
import torch
import torch.distributed as dist
from torch import nn

import equipoise
from equipoise.integrations import megatron
from tests.ranks import on_ranks

FINALIZE = "megatron.core.distributed.finalize_model_grads"


def counts(rank, seed):
    return torch.randint(
        0, 50, (3, 8), generator=torch.Generator().manual_seed(10 * seed + rank)
    ).float()


class Router(nn.Module):
    """What is looked at of Megatron's router."""

    def __init__(self, experts=8):
        super().__init__()
        self.register_buffer("expert_bias", torch.zeros(experts))
        self.register_buffer("local_tokens_per_expert", torch.zeros(experts))


def config_at(rate):
    return types.SimpleNamespace(moe_router_bias_update_rate=rate)


@pytest.fixture
def finalize(monkeypatch):
    """A stand-in of megatron-core 0.19: it skips routers in evaluation, and frozen ones."""
    module = types.ModuleType(FINALIZE)
    utils = types.ModuleType("megatron.core.transformer.moe.moe_utils")
    state = types.ModuleType("megatron.core.parallel_state")
    state.get_tensor_and_data_parallel_group = lambda with_context_parallel: None
    utils.get_updated_expert_bias = module.get_updated_expert_bias = lambda *args: None

    def update(model, config, tp_dp_cp_group=None):
        taken = [
            router
            for chunk in model
            for router in chunk.modules()
            if hasattr(router, "expert_bias")
            and router.training
            and not getattr(router, "frozen_expert_bias", False)
        ]
        after = module.get_updated_expert_bias(
            torch.stack([router.local_tokens_per_expert for router in taken]),
            torch.stack([router.expert_bias for router in taken]),
            config.moe_router_bias_update_rate,
            tp_dp_cp_group=tp_dp_cp_group,
        )
        for router, bias in zip(taken, after, strict=True):
            router.expert_bias.copy_(bias)

    module._update_router_expert_bias = update
    module._update_router_qb_beta = lambda model, config, dp_cp_group=None: None
    for each in (module, utils, state):
        parts = each.__name__.split(".")
        for end in range(1, len(parts)):
            name = ".".join(parts[:end])
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, each.__name__, each)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group=None: None)
    return module


def step(finalize, routers, seed, rate=1e-3):
    for router, each in zip(routers, counts(0, seed)):
        router.local_tokens_per_expert.copy_(each)
    finalize._update_router_expert_bias([nn.ModuleList(routers)], config_at(rate))


def twin_step(twin, seed, row):
    loads = counts(0, seed)[row].long()
    twin.update(equipoise.Tally(loads, loads[None], twin.steps.clone()))


@pytest.mark.parametrize("how", ["evaluation", "frozen"])
def test_layers_are_known_by_identity(finalize, how):
    """The middle router is left out for a while; each rule keeps its own memory."""
    routers = [Router() for _ in range(3)]
    installed = megatron.install("smebu", top_k=2)
    twins = [equipoise.balancer("smebu", 8, top_k=2) for _ in range(3)]
    for seed in range(6):
        left_out = seed in (2, 3)
        routers[1].train(not (left_out and how == "evaluation"))
        routers[1].frozen_expert_bias = left_out and how == "frozen"
        step(finalize, routers, seed)
        for row, twin in enumerate(twins):
            if not (left_out and row == 1):
                twin_step(twin, seed, row)
            assert torch.equal(routers[row].expert_bias, twin.shift)
    installed.remove()


def test_a_state_without_the_skipped_layer_is_restored(finalize):
    routers = [Router() for _ in range(3)]
    routers[1].eval()
    installed = megatron.install("smebu", top_k=2)
    step(finalize, routers, 0)
    state = {name: value.clone() for name, value in installed.state_dict().items()}
    assert {name.split(".")[0] for name in state} == {"0", "2"}
    biases = [router.expert_bias.clone() for router in routers]
    routers[1].train()
    step(finalize, routers, 1)
    expected = [router.expert_bias.clone() for router in routers]
    installed.remove()

    installed = megatron.install("smebu", top_k=2)
    installed.load_state_dict(state)
    assert installed.state_dict().keys() == state.keys()
    for router, bias in zip(routers, biases):
        router.expert_bias.copy_(bias)
    step(finalize, routers, 1)
    for router, bias in zip(routers, expected):
        assert torch.equal(router.expert_bias, bias)
    installed.remove()


@pytest.mark.parametrize("name", ["deepseek", "moonlight"])
def test_megatrons_rate_is_the_rate_of_a_sign_rule(finalize, name):
    installed = megatron.install(name, top_k=2)
    routers = [Router() for _ in range(3)]
    step(finalize, routers, 0, rate=1e-2)
    slow, quick = (equipoise.balancer(name, 8, top_k=2, update_rate=u) for u in (2.5e-3, 1e-2))
    twin_step(quick, 0, 1)
    assert torch.equal(routers[1].expert_bias, quick.shift)
    # a rate that changes in the middle of a training is followed
    step(finalize, routers, 1, rate=2.5e-3)
    slow.shift.copy_(quick.shift)
    twin_step(slow, 1, 1)
    assert torch.equal(routers[1].expert_bias, slow.shift)
    installed.remove()


def test_two_rates_that_differ_are_refused(finalize):
    routers = [Router() for _ in range(3)]
    installed = megatron.install("moonlight", top_k=2, update_rate=1e-2)
    with pytest.raises(ValueError, match=r"update_rate=0\.01.*update_rate is 0\.001"):
        step(finalize, routers, 0)
    step(finalize, routers, 0, rate=1e-2)
    installed.remove()
    installed = megatron.install("smebu", top_k=2)
    with pytest.raises(ValueError, match="smebu measures its rate in other units"):
        step(finalize, routers, 0, rate=1e-2)
    step(finalize, routers, 0)
    installed.remove()


def test_megatrons_own_quantile_balancing_is_refused(finalize):
    own = finalize._update_router_qb_beta
    installed = megatron.install("moonlight", top_k=2)
    with pytest.raises(ValueError, match="balances by quantiles while equipoise"):
        finalize._update_router_qb_beta([], None)
    installed.remove()
    assert finalize._update_router_qb_beta is own


def test_an_unknown_megatron_is_left_as_it_was(finalize):
    own = finalize.get_updated_expert_bias
    del finalize._update_router_expert_bias
    with pytest.raises(ValueError, match="has no _update_router_expert_bias"):
        megatron.install("moonlight", top_k=2)
    assert finalize.get_updated_expert_bias is own


def agrees_with_megatron(rank):
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils

    finalize_model_grads = importlib.import_module(FINALIZE)
    parallel_state.initialize_model_parallel()
    own = moe_utils.get_updated_expert_bias
    own_caller = finalize_model_grads._update_router_expert_bias
    theirs, mine = torch.zeros(3, 8), torch.zeros(3, 8)
    routers = nn.ModuleList(Router() for _ in range(3))
    installed = megatron.install("deepseek", top_k=2)
    for seed in range(4):
        theirs = own(counts(rank, seed), theirs, 1e-2)
        for router, each in zip(routers, counts(rank, seed)):
            router.local_tokens_per_expert.copy_(each)
        finalize_model_grads._update_router_expert_bias([routers], config_at(1e-2))
        mine = torch.stack([router.expert_bias for router in routers])
        torch.testing.assert_close(mine, theirs)
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    assert torch.equal(*both)
    assert mine.any()
    with pytest.raises(ValueError, match="already"):
        megatron.install("deepseek", top_k=2)
    installed.remove()
    assert finalize_model_grads.get_updated_expert_bias is own
    assert finalize_model_grads._update_router_expert_bias is own_caller
    # called as a function of its own, without routers: layers are known by their order
    installed = megatron.install("deepseek", top_k=2, update_rate=1e-2)
    alone = finalize_model_grads.get_updated_expert_bias(counts(rank, 0), torch.zeros(3, 8), 1e-2)
    torch.testing.assert_close(alone, own(counts(rank, 0), torch.zeros(3, 8), 1e-2))
    with pytest.raises(ValueError, match=r"2 layers are updated, but .* there were 3"):
        finalize_model_grads.get_updated_expert_bias(counts(rank, 1)[:2], mine[:2], 1e-2)
    installed.remove()
    with pytest.raises(ValueError, match="needs more than loads"):
        megatron.install("quantile", top_k=2)
    parallel_state.destroy_model_parallel()


@pytest.mark.slow
def test_deepseek_is_megatrons_rule(tmp_path):
    pytest.importorskip("megatron.core")
    on_ranks(agrees_with_megatron, 2, tmp_path)
