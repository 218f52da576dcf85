"""Balance megatron-core's MoE layer with its own router, and curvature's shift in it.

On a GPU this is the one line marked below. Here one process stands for a cluster, and a few lines
answer what megatron-core asks of CUDA, so that the example runs on a CPU.
"""

import contextlib
from unittest import mock

import torch
import torch.distributed as dist

from equipoise.integrations import megatron

try:
    from megatron.core import parallel_state
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.experts import SequentialMLP
    from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig
except ModuleNotFoundError as error:
    raise SystemExit(
        "this example needs megatron-core: pip install 'equipoise[megatron]'"
    ) from error


class Trained(torch.nn.Module):
    """What finalize_model_grads wants of a model: its config, and a sum over ranks of gradients."""

    def __init__(self, layer: MoELayer) -> None:
        super().__init__()
        self.layer, self.config = layer, layer.config

    def finish_grad_sync(self, **more: object) -> None:
        pass


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
torch.manual_seed(0)

config = TransformerConfig(
    num_layers=1,
    hidden_size=32,
    num_attention_heads=4,
    num_moe_experts=16,
    moe_router_topk=2,
    moe_router_load_balancing_type="none",  # or the losses you had: they stay
    moe_token_dispatcher_type="allgather",
    use_cpu_initialization=True,
    add_bias_linear=False,
)
linear = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
experts = ModuleSpec(module=SequentialMLP, submodules=linear)

with contextlib.ExitStack() as on_cpu:
    here = lambda: torch.device("cpu")  # noqa: E731
    on_cpu.enter_context(mock.patch.object(torch.cuda, "current_device", here))
    on_cpu.enter_context(torch.compiler.set_stance("force_eager"))
    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16 names it without TransformerEngine
        moe_utils.te_general_gemm = None

    # this line, where you build the model
    submodules = MoESubmodules(experts=experts, router=megatron.router("curvature"))
    layer = MoELayer(config, submodules)
    layer.set_layer_number(1)
    with torch.no_grad():  # a router that likes some experts more than others
        layer.router.weight.add_(torch.linspace(-0.3, 0.3, 16)[:, None])

    model = Trained(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(21):
        for _ in range(2):  # two micro-batches make one global batch
            output, _ = layer(torch.randn(128, 4, 32) + 0.3)
            output.square().mean().backward()
        # you call it already (forward_backward_func does): the shift moves in it
        finalize_model_grads([model])
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            loads = layer.router.loads
            gap = (loads - loads.float().mean()).abs().mean() / loads.float().mean()
            print(f"step {step:2d}  imbalance {gap:.3f}  loads {loads.tolist()}")

parallel_state.destroy_model_parallel()
dist.destroy_process_group()
