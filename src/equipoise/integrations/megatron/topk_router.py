"""megatron-core's TopKRouter with one thing replaced: how experts are chosen.

TopKRouter.routing applies the z-loss, calls one function that chooses experts and weighs them,
drops tokens above the capacity, and attaches the auxiliary losses. Only that function is ours. A
subclass cannot replace it, since it is a global name in Megatron's module, and replacing it there
would change every router of the process. So the methods that name it are taken over as they are,
with this one name bound to the router's own choice: whatever else a release does in them stays.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise.attach.making import Maker, make_dual
from equipoise.integrations.megatron.counting import ForwardCounter
from equipoise.integrations.megatron.gates import (
    chosen_gates,
    expert_scores,
    spread_over_experts,
)
from equipoise.integrations.megatron.settings import (
    is_forced,
    options_with_rate,
    read_gate_settings,
    refuse_unsupported,
)
from equipoise.routing import Routing, Tally, route
from equipoise.routing.recomputation import check_backward_is_seen
from equipoise.storage.optional import import_optional

_CHOOSES = "topk_routing_with_score_function"
_CHOOSES_BEFORE_0_14 = "topk_softmax_with_capacity"


class BalancedRouting(nn.Module):
    """What is ours in a router of Megatron's: a balancer, its shift in the choice, its counts.

    The balancer is a submodule, so that Megatron's checkpoints, plain and distributed, hold its
    shift and its memory, in float32 whatever the model's dtype.
    """

    config: Any
    weight: Tensor
    drops_in_choice = False
    """whether Megatron's choosing function, which ours replaces, also drops tokens"""

    def __init__(
        self, config: Any, *, balancer: Maker, options: Mapping[str, object], **more: Any
    ) -> None:
        check_backward_is_seen()
        refuse_unsupported(config)
        if self.drops_in_choice and config.moe_expert_capacity_factor is not None:
            raise ValueError(
                "moe_expert_capacity_factor is set, and this megatron-core drops tokens inside of "
                "the function that chooses experts, which equipoise replaces: from 0.14 on it works"
            )
        super().__init__(config=config, **more)
        self.balancer = _make_balancer(balancer, options, config)
        self.counter = ForwardCounter()
        self.loads: Tensor | None = None
        """(E,) int64, of the last global batch over all ranks"""

    @property
    def is_updated(self) -> bool:
        """Whether the next step moves its shift.

        As in Megatron, not in evaluation, and not where frozen_expert_bias is set.
        """
        frozen = getattr(self, "frozen_expert_bias", False)
        return self.training and not frozen and not is_forced(self.config)

    @property
    def token_group(self) -> dist.ProcessGroup | None:
        """The ranks whose routers see different tokens: tensor x context x data parallel.

        Without sequence parallelism all ranks of a tensor-parallel group see the same ones.
        """
        state = import_optional("megatron.core.parallel_state", extra="megatron")
        shared = getattr(self, "tp_group", None)
        size = shared.size() if shared is not None else self.config.tensor_model_parallel_size
        if size > 1 and not self.config.sequence_parallel:
            return state.get_data_parallel_group(with_context_parallel=True)
        own = getattr(self, "tp_dp_cp_group", None)
        return own or state.get_tensor_and_data_parallel_group(with_context_parallel=True)

    def take_tally(self) -> Tally:
        """What was counted since the last step, or a tally of nothing."""
        return self.counter.take() or self._tally_nothing()

    def choose_experts(self, padding: Tensor | None, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(T, E) logits to Megatron's gates and map, (T, E) each.

        `padding` (T,) is True where a token is padding: it is routed, and not counted.
        """
        if self.balancer.steps.device != logits.device:
            self.balancer.to(logits.device)
        settings = read_gate_settings(self.config)
        scores = expert_scores(settings, logits)
        routing = self._route(scores.detach(), padding)
        # asked first: the counter must hear of every forward
        if self.counter.enter_forward(self.training) and self.is_updated:
            self.counter.add(self.balancer.tally(scores.detach(), routing))
        gates = chosen_gates(settings, logits, scores, routing.experts)
        return spread_over_experts(gates, routing.experts, logits.shape[1])

    @torch.no_grad()
    def _route(self, scores: Tensor, padding: Tensor | None) -> Routing:
        groups = read_gate_settings(self.config).groups
        if is_forced(self.config):
            return route(scores, self.balancer.top_k, groups=groups, mask=padding)
        return self.balancer.route(scores, groups=groups, mask=padding)

    @torch.no_grad()
    def _tally_nothing(self) -> Tally:
        """The tally of one padding token: all zeros, in the shapes of this balancer's tallies."""
        weight = self.weight
        scores = torch.zeros(1, self.balancer.num_experts, device=weight.device)
        padding = torch.ones(1, dtype=torch.bool, device=weight.device)
        return self.balancer.tally(scores, self._route(scores, padding))

    def _apply_expert_bias(self, *args: Any, **kwargs: Any) -> None:
        """Megatron's counting for its own bias, which is off; it would compile itself first."""


def balanced_class(base: type) -> type:
    """Megatron's router class with our choice in it."""
    own = _methods_that_choose(base)
    if "routing" not in own:
        raise ValueError(
            f"{base.__name__}.routing of this megatron-core does not call {_CHOOSES}: equipoise "
            "knows 0.12 to 0.20"
        )
    attributes: dict[str, Any] = {name: _with_our_choice(each) for name, each in own.items()}
    attributes["__module__"] = __name__
    attributes["drops_in_choice"] = any(
        _CHOOSES_BEFORE_0_14 in each.__code__.co_names for each in own.values()
    )
    return types.new_class(
        f"Balanced{base.__name__}",
        (BalancedRouting, base),
        exec_body=lambda names: names.update(attributes),
    )


def _methods_that_choose(base: type) -> dict[str, types.FunctionType]:
    """The methods in whose code the choosing function is named."""
    return {
        name: method
        for name, method in vars(base).items()
        if isinstance(method, types.FunctionType)
        and {_CHOOSES, _CHOOSES_BEFORE_0_14} & set(method.__code__.co_names)
    }


def _with_our_choice(method: types.FunctionType) -> Callable[..., Any]:
    """The same method, in which the choosing function is the router's own."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def choosing(self: BalancedRouting, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        mask = given.get("padding_mask")
        choose = functools.partial(
            self.choose_experts, None if mask is None else mask.reshape(-1).bool()
        )
        # read anew each time: a name of Megatron's module that others replace stays replaced
        names = {
            **method.__globals__,
            _CHOOSES: lambda logits, *_, **__: choose(logits),
            _CHOOSES_BEFORE_0_14: lambda logits, *_, **__: _with_counts(*choose(logits)),
        }
        bound = types.FunctionType(
            method.__code__, names, method.__name__, method.__defaults__, method.__closure__
        )
        return bound(self, *args, **kwargs)

    return choosing


def _with_counts(gates: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What Megatron's function returned before 0.14."""
    return gates, chosen, chosen.sum(dim=0)


def _make_balancer(balancer: Maker, options: Mapping[str, object], config: Any) -> Any:
    size = config.num_moe_experts, config.moe_router_topk
    made = make_dual(balancer, dict(options), *size)
    if isinstance(balancer, str):
        rated = options_with_rate(made, balancer, options, config)
        made = make_dual(balancer, dict(rated), *size)
    return made
