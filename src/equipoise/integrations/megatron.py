"""megatron-core: any balancer that needs only loads in place of its sign rule.

    from equipoise.integrations import megatron
    balancers = megatron.install("moonlight", top_k=8, update_rate=1e-3)    # before training
    balancers.remove()                                                      # undoes it

Megatron counts tokens per expert in its router (moe_router_enable_expert_bias) and calls
`get_updated_expert_bias` once per global batch, in finalize_model_grads. That function is replaced;
counts are reduced over the same ranks as before. `update_rate` is the balancer's own: Megatron's
moe_router_bias_update_rate is not used.

Tested here with megatron-core 0.16.1: the function itself, on two gloo ranks, with real parallel
groups. Not run: a training with Megatron's router, which needs a GPU. Megatron counts in float32:
at most 16,777,216 tokens per expert and step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.integrations.by_loads import ByLoads
from equipoise.storage.optional import import_optional

_PATCHED_MODULES = (
    "megatron.core.distributed.finalize_model_grads",
    "megatron.core.transformer.moe.moe_utils",
)
_PATCHED_FUNCTION = "get_updated_expert_bias"


class InstalledBalancers(ByLoads):
    """The balancers in Megatron's place. `remove()` puts Megatron's own function back."""

    def __init__(self, name: str, top_k: int, **options: Any) -> None:
        super().__init__(name, top_k, **options)
        self._own: dict[str, Callable[..., Tensor]] = {}
        for home in _PATCHED_MODULES:
            module = import_optional(home, extra="megatron")
            own = getattr(module, _PATCHED_FUNCTION)
            if isinstance(getattr(own, "__self__", None), InstalledBalancers):
                raise ValueError(
                    "equipoise is installed in megatron-core already: call remove() on it first"
                )
            self._own[home] = own
        for home in _PATCHED_MODULES:
            setattr(
                import_optional(home, extra="megatron"),
                _PATCHED_FUNCTION,
                self.get_updated_expert_bias,
            )

    @torch.no_grad()
    def get_updated_expert_bias(
        self,
        tokens_per_expert: Tensor,
        expert_bias: Tensor,
        expert_bias_update_rate: float,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Megatron's function: (L, E) counts of this rank and biases -> the next biases."""
        groups = [
            value for value in (*args, *kwargs.values()) if isinstance(value, dist.ProcessGroup)
        ]
        state = import_optional("megatron.core.parallel_state", extra="megatron")
        group = (
            groups[0]
            if groups
            else state.get_tensor_and_data_parallel_group(with_context_parallel=True)
        )
        # in place, as Megatron does: its logging reads the sum
        dist.all_reduce(tokens_per_expert, group=group)
        flat = tokens_per_expert.reshape(-1, tokens_per_expert.shape[-1])
        return self.update(flat, expert_bias.reshape(flat.shape)).view_as(expert_bias)

    def remove(self) -> None:
        for home, own in self._own.items():
            setattr(import_optional(home, extra="megatron"), _PATCHED_FUNCTION, own)


def install(balancer: str = "moonlight", *, top_k: int, **options: Any) -> InstalledBalancers:
    """Put a balancer in place of Megatron's update of expert biases.

    Args:
        balancer: a name that needs only loads.
        top_k: moe_router_topk.
        **options: of the balancer.
    """
    return InstalledBalancers(balancer, top_k, **options)
