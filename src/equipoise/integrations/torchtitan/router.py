"""BalancedTopKRouter: torchtitan's token-choice router, with any shift of ours and exact counts.

    scores  = softmax or sigmoid of gate(x), in float32        as torchtitan
    experts = top-K of scores + shift                          ours, groups too
    gates   = scores of the chosen ones (route_norm, route_scale)  as torchtitan

The shift is the balancer's own, in float32; `expert_bias_E` of the MoE around it, if it has one, is
a copy for checkpoints and inference: in evaluation the choice is made by what the MoE passes.

It takes the place of torchtitan's router by its Config (0.3 and newer; `balance_model_spec`
exchanges all of a model), or by `BalancedTopKRouter.convert` in a model that is built already.

This module imports torchtitan, and was run with the releases that docs/torchtitan.md names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from equipoise.balancing.resolve import BalancerSource
from equipoise.integrations.torchtitan.counted_choice import CountedChoice
from equipoise.integrations.torchtitan.moe_layers import local_tensor
from equipoise.routing import Groups, score_function
from equipoise.routing.kernels.reference import count_loads

try:
    from torchtitan.models.common.moe import TokenChoiceTopKRouter
except ModuleNotFoundError as missing:
    if not str(missing.name).startswith("torchtitan.models"):
        raise
    # releases 0.2
    from torchtitan.models.moe import moe as _older_moe

    TokenChoiceTopKRouter = _older_moe.TokenChoiceTopKRouter

HAS_CONFIGS = hasattr(TokenChoiceTopKRouter, "Config")
"""whether torchtitan's modules are built from configs: since 0.3. Its router then returns all
scores, and returned the loads before"""


class BalancedTopKRouter(TokenChoiceTopKRouter):
    """torchtitan's router with a balancer. It is made by its Config, or by `convert`."""

    choice: CountedChoice

    if HAS_CONFIGS:

        @dataclass(kw_only=True, slots=True)
        class Config(TokenChoiceTopKRouter.Config):
            """That of torchtitan's router, and a balancer by name with its options."""

            balancer: str = "curvature"
            balancer_options: dict[str, Any] = field(default_factory=dict)

    def __init__(self, config: Any) -> None:
        if config.sharding_config is not None:
            raise ValueError(
                "BalancedTopKRouter takes no sharding_config of its own: give it to its gate, as "
                "torchtitan's set_moe_sharding_config does"
            )
        super().__init__(config)
        self.set_balancer(config.balancer, config.balancer_options)

    @classmethod
    def convert(
        cls, router: TokenChoiceTopKRouter, source: BalancerSource, options: dict[str, object]
    ) -> None:
        """Turn a router of torchtitan into one of ours, in place: its gate stays."""
        if type(router) is not TokenChoiceTopKRouter:
            raise TypeError(
                f"a {type(router).__name__} is not torchtitan's TokenChoiceTopKRouter: it may "
                "route otherwise, and is left alone"
            )
        if "forward" in vars(router):
            raise ValueError("convert routers before the model is parallelized, not after")
        router.__class__ = cls
        with router.gate.weight.device:
            router.set_balancer(source, options)

    def set_balancer(self, source: BalancerSource, options: dict[str, object]) -> None:
        """Route by this balancer from now on."""
        score_function(self.score_func)
        groups = _groups_of(self)
        choice = CountedChoice(source, self.num_experts, self.top_k, options, groups=groups)
        choice.forced = self._debug_force_load_balance
        # not as a submodule: torchtitan refuses modules that are not its own
        self.__dict__["choice"] = choice

    # ---- the forward

    def forward(
        self, x: Tensor, expert_bias: Tensor | None = None, **more: object
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gates, experts and, as the release has it, all scores or the loads.

        Args:
            x: (..., D), tokens; a DTensor under tensor parallelism.
            expert_bias: (E,) of the MoE; used in evaluation only.
            more: what later releases pass, such as a padding mask: refused.
        """
        passed = [name for name, value in more.items() if value is not None]
        if passed:
            raise TypeError(
                f"BalancedTopKRouter was called with {', '.join(passed)}, which it does not know: "
                "this release of torchtitan is newer than those it was written for"
            )
        scores = score_function(self.score_func)(self._gate_logits(x))
        experts = self._choose(scores, expert_bias)
        gates = scores.gather(-1, experts)
        if self.route_norm:
            gates = gates / (gates.sum(-1, keepdim=True) + 1e-20)
        gates = gates * self.route_scale
        if HAS_CONFIGS:
            return gates, experts, scores
        return gates, experts, count_loads(experts, self.num_experts, None)

    def _gate_logits(self, x: Tensor) -> Tensor:
        """In float32, as torchtitan computes them since 0.3, whatever autocast is around."""
        if x.device.type == "cpu":
            # its autocast knows no float32
            with torch.autocast("cpu", enabled=False):
                return self.gate(x.to(self.gate.weight.dtype))
        with torch.autocast(x.device.type, dtype=torch.float32):
            return self.gate(x)

    def _choose(self, scores: Tensor, expert_bias: Tensor | None) -> Tensor:
        """(..., K) int64, laid out over devices as the scores are."""
        local = local_tensor(scores)
        counted = self.training and torch.is_grad_enabled()
        if counted and not self.choice.hook_registered:
            raise RuntimeError(
                "this router is trained, but nothing will update its balancer: let a BalancingHook "
                "be the model's post_optimizer_build_fn, or call hook(optimizers, model_parts, "
                "parallel_dims)"
            )
        shift = None if self.training or expert_bias is None else local_tensor(expert_bias).float()
        forced = None
        if self.choice.forced:
            forced = self._debug_force_load_balance_routing(local)[0].flatten(0, -2)
        chosen = self.choice.choose(
            local.flatten(0, -2), counted=counted, shift=shift, forced=forced
        )
        chosen = chosen.view(*local.shape[:-1], self.top_k)
        if not isinstance(scores, DTensor):
            return chosen
        _check_rows_are_whole(scores)
        return DTensor.from_local(
            chosen,
            scores.device_mesh,
            scores.placements,
            run_check=False,
            shape=torch.Size((*scores.shape[:-1], self.top_k)),
            stride=_contiguous_stride((*scores.shape[:-1], self.top_k)),
        )

    # ---- what the tree of modules would do for a submodule

    def train(self, mode: bool = True) -> BalancedTopKRouter:
        self.choice.train(mode)
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> BalancedTopKRouter:
        self.choice._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def _init_self_buffers(self, *, buffer_device: torch.device | None = None) -> None:
        """As torchtitan initializes the buffers of its modules, since 0.3."""
        self.choice.restore_first_values(buffer_device or self.choice.counts.device)

    def init_weights(self, *args: Any, **kwargs: Any) -> None:
        """As torchtitan initialized its modules before."""
        super().init_weights(*args, **kwargs)
        self.choice.restore_first_values(self.gate.weight.device)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in self.choice.balancer.state_dict(keep_vars=keep_vars).items():
            destination[f"{prefix}balancer.{name}"] = value

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Tensor],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """The balancer's part goes to the balancer: whole, or not at all where it is not there."""
        start = f"{prefix}balancer."
        given = {
            name.removeprefix(start): value
            for name, value in state_dict.items()
            if name.startswith(start)
        }
        others = {name: value for name, value in state_dict.items() if not name.startswith(start)}
        super()._load_from_state_dict(
            others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        missing, unexpected = list(self.choice.balancer.state_dict()), []
        if given:
            try:
                missing, unexpected = self.choice.balancer.load_state_dict(given, strict=False)
            except RuntimeError as error:
                error_msgs.append(str(error))
        missing_keys += [start + name for name in missing]
        unexpected_keys += [start + name for name in unexpected]

    @property
    def balancer(self) -> Any:
        """Found by this name where a state dict says `router.balancer.shift`."""
        return self.choice.balancer


def _groups_of(router: Any) -> Groups | None:
    """Node-limited routing; releases before 0.2.1 have none."""
    number = getattr(router, "num_expert_groups", None)
    if number is None:
        return None
    if router.num_limited_groups is None:
        raise ValueError("num_expert_groups is set, so num_limited_groups must be too")
    return Groups(number, router.num_limited_groups)


def _check_rows_are_whole(scores: DTensor) -> None:
    """Refuse scores of which this rank holds only some experts, or only a part of the sum."""
    for placement in scores.placements:
        if placement.is_partial() or placement.is_shard(scores.dim() - 1):
            raise ValueError(
                f"the router's scores are laid out as {scores.placements}: every rank needs all "
                "experts' scores of its tokens, so leave the gate's weight whole (Replicate)"
            )


def _contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()
