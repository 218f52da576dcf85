"""megatron-core's own function as the judge: deepseek takes the same steps, on two gloo ranks."""

import importlib

import pytest
import torch
import torch.distributed as dist

from tests.ranks import on_ranks

pytest.importorskip("megatron.core")


def counts(rank, seed):
    return torch.randint(
        0, 50, (3, 8), generator=torch.Generator().manual_seed(10 * seed + rank)
    ).float()


def agrees_with_megatron(rank):
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils

    from equipoise.integrations import megatron

    finalize_model_grads = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    parallel_state.initialize_model_parallel()
    own = moe_utils.get_updated_expert_bias
    theirs, mine = torch.zeros(3, 8), torch.zeros(3, 8)
    installed = megatron.install("deepseek", top_k=2, update_rate=1e-2)
    for seed in range(4):
        theirs = own(counts(rank, seed), theirs, 1e-2)
        mine = finalize_model_grads.get_updated_expert_bias(counts(rank, seed), mine, 123.0)
        torch.testing.assert_close(mine, theirs)
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    assert torch.equal(*both)
    assert mine.any()
    with pytest.raises(ValueError, match="already"):
        megatron.install("deepseek", top_k=2)
    installed.remove()
    assert finalize_model_grads.get_updated_expert_bias is own
    with pytest.raises(ValueError, match="needs more than loads"):
        megatron.install("quantile", top_k=2)
    parallel_state.destroy_model_parallel()


@pytest.mark.slow
def test_deepseek_is_megatrons_rule(tmp_path):
    on_ranks(agrees_with_megatron, 2, tmp_path)
