"""A step: sum what every router has counted, over ranks too, and update every balancer by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.count.states import CountState
from equipoise.attach.find.in_use import replaced_parts
from equipoise.attach.find.kernels import runs_kernel
from equipoise.routing import Tally
from equipoise.routing.reduce import reduce_across_devices


def check_counted(routers: Sequence[BalancedRouter]) -> None:
    """Refuse a step for which nothing was counted, or not every router that trains."""
    called = (CountState.ENTERED, CountState.REPLAYED)
    entered = any(router.count.state in called for router in routers)
    if not entered and not any(router.count.tallies for router in routers):
        raise RuntimeError(
            "nothing was counted since the last step: no training forward (model.train(), "
            "gradients on) went through the model. Is step() called twice, by a callback and an "
            "optimizer, or was the model compiled before balance()?"
        )
    missed = [router.name for router in routers if router.missed]
    if missed:
        raise RuntimeError(
            "these routers took part in training but were not counted: "
            f"{', '.join(missed)}. A fused kernel or a CUDA graph may bypass their hooks; leave "
            "them out by skip=[...] if they are not to be balanced"
        )


def check_in_use(routers: Sequence[BalancedRouter]) -> None:
    """Refuse routers of which something was replaced after balance(): what we move there has no
    effect, though the block is counted as before.
    """
    for router in routers:
        found = router.found
        if runs_kernel(found.gate) or runs_kernel(found.block):
            raise RuntimeError(
                f"{router.name} runs a Hub kernel that was put in place after balance(), and may "
                "go around its hooks: load the model with use_kernels=True (or call "
                "set_use_kernels) first, then balance it"
            )
        replaced = replaced_parts(found.block, found.gate, found.experts, found.bias)
        if replaced:
            raise RuntimeError(
                f"{router.name} does not run the {' and '.join(replaced)} that balance() found: "
                "something replaced it since. PEFT does so by modules_to_save=[...], and by "
                "set_adapter. Wrap the model first (get_peft_model, or let the Trainer do it), "
                "then balance what it returns; here: balancing.detach(), and "
                "equipoise.balance(...) of the wrapped model"
            )


def collect_tallies(
    routers: Sequence[BalancedRouter], group: dist.ProcessGroup | None
) -> dict[str, Tally]:
    """What was counted since the last step, by router, summed over the ranks of `group`."""
    tallies = {router.name: router.take_tally() for router in routers}
    return reduce_across_devices(tallies, group)


def update_routers(routers: Sequence[BalancedRouter], tallies: Mapping[str, Tally]) -> None:
    """Update every balancer, except in layers where nothing trains while others do."""
    something_trains = any(not router.frozen for router in routers)
    for router in routers:
        if not (router.frozen and something_trains):
            router.update(tallies[router.name])
