"""megatron-core: its router with a balancer of ours, or only its sign rule replaced.

    from equipoise.integrations import megatron

    submodules = MoESubmodules(experts=..., router=megatron.router("curvature"))

`router` takes the place of Megatron's TopKRouter (topk_router.py): every balancer with a shift,
softmax gates too, exact counts, state in Megatron's checkpoints. `install_router` does the same for
a model built from ready-made specs. `install` is less: Megatron's router stays, and the function
that updates its bias is replaced, by a rule that needs only loads (expert_bias.py).

docs/megatron.md says what is supported, what is refused, which releases were tried, and what was
not: a GPU above all.
"""

from equipoise.integrations.megatron.expert_bias import InstalledBalancers, install
from equipoise.integrations.megatron.install_router import install_router, router
from equipoise.integrations.megatron.stepping import hook_finalize, router_step, unhook_finalize

__all__ = [
    "InstalledBalancers",
    "hook_finalize",
    "install",
    "install_router",
    "router",
    "router_step",
    "unhook_finalize",
]
