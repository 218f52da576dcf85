"""torchtitan's whole DeepSeek-V3 debug model with our routers: built, parallelized and stepped by
torchtitan's own code, on one process and on two. Skipped where torchtitan is missing.
"""

import functools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from equipoise.integrations.torchtitan.moe_layers import local_tensor
from tests.integrations.torchtitan.real_torchtitan import (
    Alone,
    build_optimizers,
    debug_spec,
    has_configs,
    materialize,
    require_torchtitan,
    watch_loads,
)
from tests.ranks import on_ranks

LENGTH = 128
POSITIONS = torch.arange(LENGTH).expand(4, LENGTH)


@pytest.fixture(autouse=True)
def newer_than_0_2():
    require_torchtitan()
    if not has_configs():
        pytest.skip("torchtitan 0.2 has no configs of models to exchange routers in")


def tokens_of(step, rank=0):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randint(0, 2048, (4, LENGTH), generator=generator)


@torch.no_grad()
def skew_gates(model, hook):
    """Freshly made routers have no favourites: let these like the last experts, for all tokens."""
    for layer in hook.layers:
        means = []
        gate = layer.moe.router.gate
        watch = gate.register_forward_pre_hook(
            lambda module, args, kept=means: kept.append(args[0].flatten(0, -2).mean(0))
        )
        model(tokens_of(0), positions=POSITIONS)
        watch.remove()
        liking = torch.linspace(-1.0, 1.0, 8).unsqueeze(1)
        gate.weight.add_(liking * means[0] / means[0].square().sum())


def run_step(model, optimizers, step, rank=0):
    tokens = tokens_of(step, rank)
    # of this rank's part of the vocabulary, under tensor parallelism
    logits = local_tensor(model(tokens, positions=POSITIONS)).float()
    loss = logits.logsumexp(-1).mean() - logits.mean()
    optimizers.zero_grad()
    loss.backward()
    optimizers.step()


def test_the_debug_model_is_trained_and_balanced():
    spec = debug_spec("curvature")
    with torch.device("meta"):
        model = spec.model.build()
    model.verify_module_protocol()
    materialize(model)
    optimizers, hook = build_optimizers([model]), spec.post_optimizer_build_fn
    hook(optimizers, [model], Alone())
    assert [layer.name for layer in hook.layers] == ["layers.1.moe", "layers.2.moe"]
    skew_gates(model, hook)
    seen = [watch_loads(layer.moe) for layer in hook.layers]
    imbalance = []
    for step in range(20):
        run_step(model, optimizers, step)
        imbalance.append(hook.metrics()["moe_balance/imbalance"])
        for layer, received in zip(hook.layers, seen, strict=True):
            assert torch.equal(hook.tallies[layer.name].loads, received.pop())
            assert torch.equal(layer.bias, layer.choice.balancer.shift)
    print(f"imbalance {imbalance[0]:.3f} -> {sum(imbalance[-5:]) / 5:.3f}")
    assert sum(imbalance[-5:]) / 5 < imbalance[0] / 3


def test_a_hugging_face_export_holds_the_shift_and_nothing_else_of_ours():
    spec = debug_spec("quantile")
    model = materialize(spec.model.build())
    optimizers, hook = build_optimizers([model]), spec.post_optimizer_build_fn
    hook(optimizers, [model], Alone())
    run_step(model, optimizers, 0)
    state = model.state_dict()
    assert "layers.1.moe.router.balancer.shift" in state
    exported = spec.state_dict_adapter(spec.model, None).to_hf(state)
    assert not any("router.balancer" in name for name in exported)
    bias = exported["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert bias.any()
    assert torch.equal(bias, hook.layers[0].choice.balancer.shift)


def test_a_bias_from_elsewhere_is_continued_from():
    spec = debug_spec("deepseek")
    model = materialize(spec.model.build())
    optimizers, hook = build_optimizers([model]), spec.post_optimizer_build_fn
    hook(optimizers, [model], Alone())
    state = {name: value for name, value in model.state_dict().items() if "balancer" not in name}
    state["layers.1.moe.expert_bias_E"] = torch.linspace(-1, 1, 8)
    model.load_state_dict(state, strict=False)
    assert torch.equal(hook.layers[0].choice.balancer.shift, torch.linspace(-1, 1, 8))
    run_step(model, optimizers, 0)
    moved = hook.layers[0].choice.balancer.shift - torch.linspace(-1, 1, 8)
    torch.testing.assert_close(moved.abs(), torch.full((8,), 1e-3), rtol=0, atol=1e-6)


def train_in_parallel(rank, degrees, backend):
    require_torchtitan()
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims, parallel_dims, utils
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.models.deepseek_v3.sharding import set_deepseek_v3_sharding_config

    spec = debug_spec("curvature", layers=2)
    parallel_dims.device_type = "cpu"
    utils.set_spmd_backend(backend)
    degrees = {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1, "ep": 1, **degrees}
    dims = ParallelDims(**degrees, world_size=2, spmd_backend=backend)
    dims.build_mesh()
    set_deepseek_v3_sharding_config(spec.model, enable_sp=dims.tp > 1, enable_ep=dims.ep > 1)
    parallelism = ParallelismConfig(
        data_parallel_shard_degree=dims.dp_shard,
        tensor_parallel_degree=dims.tp,
        expert_parallel_degree=dims.ep,
        spmd_backend=backend,
    )
    training = TrainingConfig(mixed_precision_param="float32", seq_len=LENGTH)
    with torch.device("meta"):
        model = spec.model.build()
    model.verify_module_protocol()
    model = spec.parallelize_fn(
        model,
        parallel_dims=dims,
        training=training,
        parallelism=parallelism,
        compile_config=CompileConfig(),
        ac_config=FullAC.Config(),
        dump_folder="",
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # gloo knows no scaled sums
            module.set_force_sum_reduction_for_comms(True)
    torch.manual_seed(0)
    materialize(model)
    optimizers, hook = build_optimizers([model]), spec.post_optimizer_build_fn
    hook(optimizers, [model], dims)
    for step in range(2):
        # tensor-parallel ranks hold the same tokens
        with utils.get_spmd_context(parallel_dims=dims)():
            run_step(model, optimizers, step, rank if dims.tp == 1 else 0)
        samples = 4 * LENGTH * (2 if dims.tp == 1 else 1)
        for layer in hook.layers:
            loads = hook.tallies[layer.name].loads
            assert int(loads.sum()) == samples * layer.choice.balancer.top_k, (layer.name, loads)
            both = [torch.empty_like(layer.choice.balancer.shift) for _ in range(2)]
            dist.all_gather(both, layer.choice.balancer.shift)
            assert torch.equal(*both)
            assert torch.equal(layer.bias, both[0])


# the backend spmd_types is refused by fully_shard of torch 2.13: its parameters are plain tensors
@pytest.mark.parametrize("backend", ["partial_dtensor"])
@pytest.mark.parametrize(
    "degrees",
    [{"dp_shard": 2}, {"tp": 2}, {"dp_shard": 2, "ep": 2}],
    ids=["fsdp", "tp", "fsdp-ep"],
)
def test_two_ranks_count_every_token_once(degrees, backend, tmp_path):
    on_ranks(functools.partial(train_in_parallel, degrees=degrees, backend=backend), 2, tmp_path)
