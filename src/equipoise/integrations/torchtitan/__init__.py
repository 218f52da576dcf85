"""torchtitan: our router in place of its own, or only its hook on loads replaced.

torchtitan balances by the sign rule: its router adds a bias, its MoE counts loads in float32 (twice
where a block recomputes, halved afterwards), and a hook at the optimizer's step moves the bias by a
fixed rate. Rules that look at scores cannot run there.

    from equipoise.integrations.torchtitan import balance_model_spec

    spec = balance_model_spec(spec, "curvature")     # a ModelSpec of torchtitan 0.3 or newer

gives every MoE layer a `BalancedTopKRouter`, which chooses by our shift and counts in whole
numbers, and the slot `post_optimizer_build_fn` a `BalancingHook`, which updates all layers at the
optimizer's step. Releases 0.2 have no configs to exchange: there `convert_routers(model, ...)`
converts the routers of a built model (docs/torchtitan.md says where).

Who wants nothing but another rule on torchtitan's own counts takes

    from equipoise.integrations.torchtitan import load_balancing_hook
    register = load_balancing_hook("smebu")   # for torchtitan's register_moe_load_balancing_hook

Only the modules that need torchtitan import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.integrations.torchtitan.loads_hook import load_balancing_hook
from equipoise.integrations.torchtitan.step_hook import BalancingHook
from equipoise.storage.lazy_names import lazy_names

if TYPE_CHECKING:
    from equipoise.integrations.torchtitan.model_spec import (
        balance_model_spec,
        convert_routers,
        without_balancers,
    )
    from equipoise.integrations.torchtitan.router import BalancedTopKRouter

__all__ = [
    "BalancedTopKRouter",
    "BalancingHook",
    "balance_model_spec",
    "convert_routers",
    "load_balancing_hook",
    "without_balancers",
]

_SPEC = "equipoise.integrations.torchtitan.model_spec"
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BalancedTopKRouter": "equipoise.integrations.torchtitan.router",
        "balance_model_spec": _SPEC,
        "convert_routers": _SPEC,
        "without_balancers": _SPEC,
    },
)
