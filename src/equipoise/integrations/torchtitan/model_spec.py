"""Put our router into a model of torchtitan: into its configs, or into the model itself.

    spec = balance_model_spec(model_registry("debugmodel"), "curvature")

exchanges every router's config in a ModelSpec (0.3 and newer), puts a BalancingHook in its slot,
and lets its Hugging Face adapter pass over the balancers' state, which Hugging Face does not know:
the shift itself is exported as `expert_bias_E`. For releases 0.2

    convert_routers(model, "curvature")

does it to a built model, before it is parallelized.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from torch import nn

from equipoise.balancing.resolve import BalancerSource
from equipoise.integrations.torchtitan.router import BalancedTopKRouter, TokenChoiceTopKRouter
from equipoise.integrations.torchtitan.step_hook import BalancingHook


def balance_model_spec(spec: Any, balancer: str = "curvature", **options: Any) -> Any:
    """A copy of a ModelSpec whose MoE layers are balanced by a balancer of ours.

    `post_optimizer_build_fn` of the copy is its BalancingHook.

    Args:
        spec: of torchtitan; with a post_optimizer_build_fn other than torchtitan's own hook it is
            refused, since there is one slot.
        balancer: a name of `equipoise.balancers()` that has a shift.
        **options: of the balancer.
    """
    taken = spec.post_optimizer_build_fn
    if taken is not None and taken.__name__ != "register_moe_load_balancing_hook":
        raise ValueError(
            f"the slot post_optimizer_build_fn holds {taken.__name__}: call it and a BalancingHook "
            "from one function of your own, and use balance_model_config(spec.model, ...)"
        )
    adapter = spec.state_dict_adapter
    return dataclasses.replace(
        spec,
        model=balance_model_config(spec.model, balancer, **options),
        post_optimizer_build_fn=BalancingHook(),
        state_dict_adapter=None if adapter is None else without_balancers(adapter),
    )


def balance_model_config(config: Any, balancer: str = "curvature", **options: Any) -> Any:
    """A copy of a model's config with our router in place of torchtitan's in every MoE layer."""
    config = copy.deepcopy(config)
    found = list(config.traverse(TokenChoiceTopKRouter.Config))
    if not found:
        raise ValueError(f"there is no TokenChoiceTopKRouter in this {type(config).__qualname__}")
    for path, router, parent, place in found:
        if type(router) is not TokenChoiceTopKRouter.Config:
            raise TypeError(
                f"{path} is a {type(router).__qualname__}: only torchtitan's own "
                "TokenChoiceTopKRouter can be exchanged"
            )
        fields = {each.name: getattr(router, each.name) for each in dataclasses.fields(router)}
        ours = BalancedTopKRouter.Config(
            **fields, balancer=balancer, balancer_options=dict(options)
        )
        if isinstance(parent, list):
            parent[place] = ours
        else:
            setattr(parent, str(place), ours)
    return config


def convert_routers(
    model: nn.Module, balancer: BalancerSource = "curvature", **options: Any
) -> None:
    """Turn all of torchtitan's routers in a model that is built, and not yet parallelized, into
    ours.
    """
    found = [module for module in model.modules() if isinstance(module, TokenChoiceTopKRouter)]
    if not found:
        raise ValueError(f"there is no TokenChoiceTopKRouter in this {type(model).__name__}")
    for router in found:
        BalancedTopKRouter.convert(router, balancer, options)


def without_balancers(adapter: type) -> type:
    """A StateDictAdapter that leaves our balancers' state out of what it hands to Hugging Face."""

    class BalancedAdapter(adapter):
        def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
            known = {
                name: value for name, value in state_dict.items() if ".router.balancer." not in name
            }
            return super().to_hf(known)

    BalancedAdapter.__name__ = adapter.__name__
    return BalancedAdapter
