"""megatron-core: any balancer that needs only loads in place of its sign rule.

    from equipoise.integrations import megatron
    balancers = megatron.install("moonlight", top_k=8)    # before training
    balancers.remove()                                    # undoes it

Megatron counts tokens per expert in its router (moe_router_enable_expert_bias) and calls
`get_updated_expert_bias` once per global batch, in finalize_model_grads. That function is replaced;
counts are reduced over the same ranks as before.

The rate of the rules of the sign ("moonlight", "deepseek") is Megatron's
moe_router_bias_update_rate, at every step. An `update_rate` that contradicts it is refused. Other
rules measure a rate in other units: theirs is `update_rate`, and a moe_router_bias_update_rate that
was set for them is refused.

Routers that Megatron leaves out (in evaluation since 0.17, frozen since 0.19) are left out here
too, and their rules remember what they had. Megatron's own quantile balancing (since 0.19) at the
same time is refused.

Tested with megatron-core 0.16.1, the newest that installs on Python 3.11: the function itself and
its caller, on two gloo ranks, with real parallel groups. The same test passed once with 0.12.0 to
0.16.0 and with the sources of 0.17, 0.18, 0.19 and of August 2026; the releases from 0.17 on want
Python 3.12. Not run: a training with Megatron's router, which needs a GPU. Megatron counts in
float32: at most 16,777,216 tokens per expert and step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise.integrations.by_loads import ByLoads
from equipoise.storage.optional import import_optional

_FINALIZE = "megatron.core.distributed.finalize_model_grads"
_UTILS = "megatron.core.transformer.moe.moe_utils"
_DEFAULT_RATE = 1e-3
"""of moe_router_bias_update_rate, in every release"""


class InstalledBalancers(ByLoads):
    """The balancers in Megatron's place. `remove()` puts Megatron's own functions back."""

    def __init__(self, name: str, top_k: int, **options: Any) -> None:
        super().__init__(name, top_k, **options)
        self._places: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._routers: list[nn.Module] | None = None
        finalize = import_optional(_FINALIZE, extra="megatron")
        utils = import_optional(_UTILS, extra="megatron")
        own = getattr(finalize, "get_updated_expert_bias", None)
        if isinstance(getattr(own, "__self__", None), InstalledBalancers):
            raise ValueError(
                "equipoise is installed in megatron-core already: call remove() on it first"
            )
        self._own: list[tuple[ModuleType, str, Callable[..., Any]]] = []
        self._replace(finalize, "get_updated_expert_bias", self.get_updated_expert_bias)
        self._replace(utils, "get_updated_expert_bias", self.get_updated_expert_bias)
        self._update_routers = self._replace(
            finalize, "_update_router_expert_bias", self._with_routers
        )
        if hasattr(finalize, "_update_router_qb_beta"):
            self._replace(finalize, "_update_router_qb_beta", self._refuse_quantile)

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
        self._check_rate(expert_bias_update_rate)
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
        after = self.update(
            flat,
            expert_bias.reshape(flat.shape),
            places=None if self._routers is None else self._places_of(self._routers, len(flat)),
            rates=[expert_bias_update_rate] * len(flat),
        )
        return after.view_as(expert_bias)

    def remove(self) -> None:
        for module, name, own in self._own:
            setattr(module, name, own)

    def _replace(
        self, module: ModuleType, name: str, ours: Callable[..., Any]
    ) -> Callable[..., Any]:
        own = getattr(module, name, None)
        if own is None:
            self.remove()
            raise ValueError(
                f"{module.__name__} of this megatron-core has no {name}: equipoise knows 0.12 to "
                "0.19"
            )
        self._own.append((module, name, own))
        setattr(module, name, ours)
        return own

    def _with_routers(
        self, model: Sequence[nn.Module], config: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Megatron's caller of the function above, which sees the routers and not only a stack."""
        self._routers = [
            module
            for chunk in model
            for module in chunk.modules()
            if getattr(module, "expert_bias", None) is not None
        ]
        for router in self._routers:
            self._places.setdefault(router, len(self._places))
        try:
            self._update_routers(model, config, *args, **kwargs)
        finally:
            self._routers = None

    def _places_of(self, routers: list[nn.Module], number: int) -> list[int]:
        """The places of those routers that Megatron updates: `number` of them.

        Which, depends on its version: all, those in training, those not frozen either. Each is part
        of the one before, so the number decides.
        """
        training = [router for router in routers if router.training]
        moving = [r for r in training if not getattr(r, "frozen_expert_bias", False)]
        for updated in (routers, training, moving):
            if len(updated) == number:
                return [self._places[router] for router in updated]
        raise ValueError(
            f"megatron-core updates {number} routers; the model has {len(routers)}, "
            f"{len(training)} of them in training, {len(moving)} of these not frozen: equipoise "
            "cannot tell which are meant"
        )

    def _check_rate(self, rate: float) -> None:
        """Two places say the rate: Megatron's config and our options. They must not differ."""
        asked = self.options.get("update_rate")
        if self.is_sign_rule:
            if asked is not None and asked != rate:
                raise ValueError(
                    f"install() was given update_rate={asked}, and Megatron's "
                    f"moe_router_bias_update_rate is {rate}: leave update_rate out, or set both to "
                    "the same"
                )
        elif rate not in (asked, _DEFAULT_RATE):
            raise ValueError(
                f"Megatron's moe_router_bias_update_rate is {rate}, a rate of its sign rule: "
                f"{self.name} measures its rate in other units. Give it as "
                f"install({self.name!r}, update_rate=...), and leave Megatron's at {_DEFAULT_RATE}"
            )

    def _refuse_quantile(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            'moe_router_load_balancing_type is "quantile_balancing", so Megatron balances by '
            f"quantiles while equipoise balances by {self.name}: set it to another, or call "
            "remove() on equipoise's balancers"
        )


def install(balancer: str = "moonlight", *, top_k: int, **options: Any) -> InstalledBalancers:
    """Put a balancer in place of Megatron's update of expert biases.

    Args:
        balancer: a name that needs only loads.
        top_k: moe_router_topk.
        **options: of the balancer. Without an `update_rate`, the rules of the sign take Megatron's
            moe_router_bias_update_rate.
    """
    return InstalledBalancers(balancer, top_k, **options)
