"""torchtitan: any balancer that needs only loads in place of its sign rule.

    from equipoise.integrations.torchtitan import load_balancing_hook
    # in place of torchtitan's register_moe_load_balancing_hook
    register = load_balancing_hook("smebu")
    register(optimizers, model_parts, parallel_dims)

It reads what torchtitan counts (`moe.tokens_per_expert_E`, in float32), halves it where a block
recomputes, as torchtitan does, reduces it over the same meshes, updates one balancer per layer,
writes `moe.expert_bias_E` and clears the counts. Buffers of older releases, without the `_E`, are
read too. `register.balancers.state_dict()` is what a rule remembers, for your checkpoint.

Tested with the MoE layer of torchtitan 0.3.0 in one CPU process without triton (`make test-all`
fetches it). Not run: meshes on several ranks, a torchtitan training, expert or tensor parallelism,
DTensor buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from equipoise.integrations.by_loads import ByLoads
from equipoise.integrations.torchtitan.moe_layers import (
    groups_of_tokens,
    local_tensor,
    moe_buffer,
)


class load_balancing_hook:  # noqa: N801 - takes the place of a function
    """Make a function with the signature of torchtitan's `register_moe_load_balancing_hook`.

    Args:
        balancer: a name that needs only loads; "moonlight" is torchtitan's own rule.
        **options: of the balancer. Without an `update_rate`, the rules of the sign ("moonlight",
            "deepseek") take each layer's own load_balance_coeff; other rules measure a rate in
            other units, and have defaults of their own.
    """

    def __init__(self, balancer: str = "moonlight", **options: Any) -> None:
        self.balancer, self.options = balancer, options
        self.balancers: ByLoads | None = None

    def __call__(self, optimizers: Any, model_parts: list[nn.Module], parallel_dims: Any) -> None:
        layers = list(_moe_layers(model_parts))
        if not layers:
            return
        without = [name for name, _, moe in layers if moe_buffer(moe, "expert_bias") is None]
        if without:
            raise ValueError(
                f"these MoE layers have no expert bias: {', '.join(without)}. Set "
                "load_balance_coeff for all of them"
            )
        self.balancers = ByLoads(
            self.balancer, [int(moe.router.top_k) for _, _, moe in layers], **self.options
        )
        optimizers.register_step_pre_hook(
            lambda *args, **kwargs: self._update_biases(model_parts, parallel_dims)
        )

    @torch.no_grad()
    def _update_biases(self, model_parts: list[nn.Module], parallel_dims: Any) -> None:
        """What torchtitan's own hook does before every optimizer step, with another rule."""
        assert self.balancers is not None
        layers = list(_moe_layers(model_parts))
        counts = [local_tensor(moe_buffer(moe, "tokens_per_expert")) for _, _, moe in layers]
        loads = torch.stack(
            [
                count // 2 if _is_recomputed(block) else count
                for (_, block, _), count in zip(layers, counts)
            ]
        )
        for group in groups_of_tokens(parallel_dims):
            dist.all_reduce(loads, group=group)
        biases = [local_tensor(moe_buffer(moe, "expert_bias")) for _, _, moe in layers]
        rates = [moe.load_balance_coeff for _, _, moe in layers]
        after = self.balancers.update(loads, torch.stack(biases), rates=rates)
        for count, bias, value in zip(counts, biases, after):
            bias.copy_(value)
            count.zero_()


def _moe_layers(model_parts: list[nn.Module]) -> Iterator[tuple[str, nn.Module, Any]]:
    """(name, transformer block, its MoE) of every sparse layer."""
    for part in model_parts:
        for name, block in part.get_submodule("layers").named_children():
            if getattr(block, "moe_enabled", False):
                yield f"layers.{name}.moe", block, block.moe


def _is_recomputed(block: nn.Module) -> bool:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl

    return getattr(block, "checkpoint_impl", None) is CheckpointImpl.NO_REENTRANT
