"""CountedChoice: the balancer of one torchtitan router, its choice of experts, and what it counts.

torchtitan's forward returns nothing but the output, so counts have to be kept on the side, and a
training counts every token once only if

- a block that is recomputed in the backward pass (full or selective activation checkpointing) does
  not count again,
- a block that torch.compile takes as one graph counts too, and
- counts stay whole numbers: float32 loses the odd ones above 16 million.

So all that a balancer counts goes into one int64 tensor, by an operator that torch.compile calls as
a whole and that looks, when it runs, whether a backward pass is running. What is computed is the
same in both passes, since selective checkpointing expects the same operations in the same order.

It stands outside of the tree of modules, since torchtitan refuses a model with modules that are not
its own; the router hands on moves, modes and states (router.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.attach.count.forward_context import check_backward_is_seen, in_backward
from equipoise.balancing import Dual, resolve_balancer
from equipoise.balancing.precise import Precise
from equipoise.balancing.resolve import BalancerSource
from equipoise.routing import Groups, Tally, route
from equipoise.routing.kernels.reference import count_loads


@torch.library.custom_op(
    "equipoise::add_outside_backward",
    mutates_args=("total",),
    schema="(Tensor(a!) total, Tensor counts) -> ()",
)
def add_outside_backward(total: Tensor, counts: Tensor) -> None:
    """total += counts, unless a backward pass is running: then a block is being recomputed."""
    if not in_backward():
        total.add_(counts)


class CountedChoice(Precise):
    """Choose experts by a balancer's shift, and add up what it must know of them.

    Args:
        source: a name of `equipoise.balancers()` that has a shift, or a function
            (num_experts, top_k) -> Dual.
        num_experts: E.
        top_k: K.
        options: of a balancer by name.
        groups: (number, keep) of node-limited routing.
    """

    counts: Tensor

    def __init__(
        self,
        source: BalancerSource,
        num_experts: int,
        top_k: int,
        options: dict[str, object] | None = None,
        *,
        groups: Groups | None = None,
    ) -> None:
        super().__init__()
        check_backward_is_seen()
        device = torch.get_default_device()
        # on the meta device nothing can be counted, not even no tokens
        with torch.device("cpu"):
            made = resolve_balancer(source, num_experts, top_k, options, per_layer=True)
            self.balancer = _checked_dual(made)
            self.groups = groups
            none = self.balancer.empty_tally()
            self.part_shapes = {name: tuple(none.parts[name].shape) for name in sorted(none.parts)}
            self.keep_buffer(
                "counts", 0, _flat_counts(none).shape, dtype=torch.int64, persistent=False
            )
        self.hook_registered = False
        """whether somebody will update the balancer at the optimizer's step"""
        self.forced = False
        """whether experts are assigned in turn: then a shift has no effect, and is not moved"""
        self.to(device)

    def choose(
        self,
        scores: Tensor,
        *,
        counted: bool,
        shift: Tensor | None = None,
        forced: Tensor | None = None,
    ) -> Tensor:
        """(T, K) int64: the chosen experts, best first.

        Args:
            scores: (T, E) float32.
            counted: whether these tokens are trained on.
            shift: (E,) to choose by; by default the balancer's own.
            forced: (T, K) the choice, if it is made already.
        """
        ranked = self.balancer.adjust(scores) if shift is None else scores.detach() + shift
        runner_up = counted and self.balancer.needs_runner_up
        routing = route(
            scores.detach(),
            self.balancer.top_k,
            choose_by=ranked,
            groups=self.groups,
            runner_up=runner_up,
        )
        if forced is not None:
            loads = count_loads(forced, self.balancer.num_experts, None)
            routing = routing._replace(experts=forced, loads=loads)
        if counted:
            tally = self.balancer.tally(scores.detach(), routing)
            add_outside_backward(self.counts, _flat_counts(tally))
        # of a top-(K+1) it is a slice, which torchtitan's dispatcher cannot flatten
        return routing.experts.contiguous()

    def take_tally(self) -> Tally:
        """What was counted since the last call; it is counted no more."""
        loads, *parts = self.counts.clone().split(
            [self.balancer.num_experts, *map(_size_of, self.part_shapes.values())]
        )
        self.counts.zero_()
        named = zip(self.part_shapes.items(), parts, strict=True)
        return Tally(
            loads,
            loads.unsqueeze(0),
            self.balancer.steps.clone(),
            {name: part.view(shape) for (name, shape), part in named},
        )


def _checked_dual(balancer: object) -> Dual:
    """Refuse what cannot act through torchtitan's router: all but a shift."""
    if not isinstance(balancer, Dual):
        raise ValueError(
            f"{balancer} has no shift, and torchtitan's router can add nothing else to its scores: "
            "choose a balancer that has one (curvature, quantile, deepseek ...)"
        )
    if len(balancer.penalties):
        raise ValueError(
            f"{balancer} carries a penalty, and torchtitan's MoE hands on no loss: take it off"
        )
    if balancer.uses_sequences:
        raise ValueError(
            f"{balancer} follows each sequence, and torchtitan's router is given flat tokens: "
            "choose one with a shift alone (curvature, quantile, deepseek ...)"
        )
    return balancer


def _flat_counts(tally: Tally) -> Tensor:
    """(N,) int64: loads, and the parts by name."""
    return torch.cat([tally.loads, *(tally.parts[name].flatten() for name in sorted(tally.parts))])


def _size_of(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
