"""torchtitan's DeepSeek-V3 debug model, balanced by the curvature rule: a few steps on one device.

    pip install torchtitan==0.3.0
    python examples/balance_torchtitan.py

A training of your own changes one line, where your model's ModelSpec is made:

    spec = balance_model_spec(model_registry("671B"), "curvature")
"""

import importlib.util
import sys
from unittest import mock

import torch

if importlib.util.find_spec("triton") is None:
    # on a machine without GPUs torchtitan's kernels, which need it, are imported and never run
    importlib.import_module("torch._inductor.select_algorithm")
    triton = mock.MagicMock(__path__=[], __spec__=None)
    sys.modules |= {"triton": triton, "triton.language": triton.language}

from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.deepseek_v3 import model_registry

from equipoise.integrations.torchtitan import balance_model_spec

spec = balance_model_spec(model_registry("debugmodel"), "curvature")


class OneDevice:
    """Stands for torchtitan's ParallelDims, which wants a process group."""

    ep_enabled, tp = False, 1

    def get_optional_mesh(self, name):
        return None


# what torchtitan's Trainer does with a ModelSpec
spec.model.layers = spec.model.layers[:3]
for layer in spec.model.layers:
    layer.attention.inner_attention = ScaledDotProductAttention.Config()
with torch.device("meta"):
    model = spec.model.build()
model.to_empty(device="cpu")
torch.manual_seed(0)
with torch.no_grad():
    model.init_weights(buffer_device=torch.device("cpu"))
model.train()
group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-3})
optimizers = OptimizersContainer.Config(implementation="for-loop", param_groups=[group]).build(
    model_parts=[model]
)
hook = spec.post_optimizer_build_fn
hook(optimizers, [model], OneDevice())

positions = torch.arange(128).expand(4, 128)
for step in range(10):
    tokens = torch.randint(0, 2048, (4, 128))
    logits = model(tokens, positions=positions).flatten(0, 1).float()
    loss = torch.nn.functional.cross_entropy(logits, tokens.flatten())
    loss.backward()
    optimizers.step()
    optimizers.zero_grad()
    print(f"step {step} imbalance {hook.metrics()['moe_balance/imbalance']:.3f}")
