"""BalancingHook: at the optimizer's step, sum what every router counted, and update its balancer.

    hook = BalancingHook()
    hook(optimizers, model_parts, parallel_dims)     # a ModelSpec's post_optimizer_build_fn
    ...
    hook.metrics()                                   # a handful of numbers, after a step
    hook.log_with(trainer.metrics_processor)         # or: into all that torchtitan logs

It takes the place of `register_moe_load_balancing_hook`, of which there can be only one: two hooks
would both move the biases. Counts go over the ranks in one collective for all layers (two where
expert parallelism splits tokens over the tensor-parallel ranks as well). Pipeline stages have
different layers, and every stage updates its own.

The MoE's own buffers are served too: `tokens_per_expert_E` is cleared, and `expert_bias_E`, where
there is one, becomes a copy of the shift, so that checkpoints and Hugging Face exports hold it.
What a checkpoint loads into that bias is taken over by the balancer.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equipoise.integrations.torchtitan.counted_choice import CountedChoice
from equipoise.integrations.torchtitan.moe_layers import (
    groups_of_tokens,
    local_tensor,
    modules_that_count,
    moe_buffer,
)
from equipoise.routing import Tally, reduce
from equipoise.routing import metrics as load_metrics
from equipoise.routing.checks import require_on_device


class BalancedLayer(NamedTuple):
    """One MoE layer of torchtitan with a router of ours."""

    name: str
    moe: nn.Module
    choice: CountedChoice

    @property
    def bias(self) -> Tensor | None:
        """What the MoE passes to its router, (E,); None without load_balance_coeff."""
        value = moe_buffer(self.moe, "expert_bias")
        return None if value is None else local_tensor(value)

    def bias_is_ours(self, bias: Tensor) -> Tensor:
        """Whether nobody wrote the bias since we did: a bool on its device."""
        return (bias == self.choice.balancer.shift.to(bias.dtype)).all()

    @torch.no_grad()
    def take_bias(self) -> None:
        """Continue from a bias that was loaded, if it is another than our shift's copy."""
        bias = self.bias
        if bias is not None:
            shift = self.choice.balancer.shift
            shift.copy_(torch.where(self.bias_is_ours(bias), shift, bias.float()))

    def write_bias(self) -> None:
        """Clear what torchtitan counted, and show the shift in its bias."""
        local_tensor(moe_buffer(self.moe, "tokens_per_expert")).zero_()
        if self.bias is not None:
            self.bias.copy_(self.choice.balancer.shift)

    def update(self, tally: Tally) -> None:
        """Update the balancer by what all ranks counted in this step."""
        require_on_device(
            tally.loads.sum() > 0,
            lambda: RuntimeError(
                f"{self.name} counted no token since the last step: was it called in training "
                "mode, with gradients on?"
            ),
        )
        bias = self.bias
        if bias is not None:
            require_on_device(
                self.bias_is_ours(bias),
                lambda: RuntimeError(
                    f"the expert bias of {self.name} was written since the last step, and not by "
                    "this hook. If torchtitan's register_moe_load_balancing_hook is registered "
                    "too, leave it out; if you wrote it, call hook.take_biases() afterwards"
                ),
            )
        if not self.choice.forced:
            self.choice.balancer.update(tally)
        self.write_bias()


class BalancingHook:
    """Balance all MoE layers of a model at every step of its optimizers.

    It is called as torchtitan calls `ModelSpec.post_optimizer_build_fn`.
    """

    def __init__(self) -> None:
        self.layers: list[BalancedLayer] = []
        """of this rank's model parts"""
        self.tallies: dict[str, Tally] = {}
        """of the last step, by layer, over all ranks"""
        self._parallel_dims: Any = None

    def __call__(self, optimizers: Any, model_parts: list[nn.Module], parallel_dims: Any) -> None:
        """Find the layers, and register the step with the optimizers."""
        self.layers = _find_layers(model_parts)
        self._parallel_dims = parallel_dims
        if not self.layers:
            return
        self.take_biases()
        for layer in self.layers:
            layer.choice.hook_registered = True
            layer.moe.register_load_state_dict_post_hook(functools.partial(_take_bias, layer))
        optimizers.register_step_pre_hook(self._step)

    def take_biases(self) -> None:
        """Let every balancer continue from its layer's expert bias, if somebody wrote that."""
        for layer in self.layers:
            layer.take_bias()

    def _step(self, *args: object, **kwargs: object) -> None:
        with torch.no_grad():
            tallies = {layer.name: layer.choice.take_tally() for layer in self.layers}
            for group in groups_of_tokens(self._parallel_dims):
                tallies = reduce(tallies, group)
            for layer in self.layers:
                layer.update(tallies[layer.name])
            self.tallies = tallies

    # ---- what to look at

    def metrics(self) -> dict[str, float]:
        """Six numbers on the loads of the last step, over this rank's layers; empty before it.

        Reading them waits for the device.
        """
        measured = [self._layer_metrics(layer) for layer in self.layers if self.tallies]
        if not measured:
            return {}
        violations = [layer["max_violation"] for layer in measured]
        return {
            "moe_balance/imbalance": sum(layer["imbalance"] for layer in measured) / len(measured),
            "moe_balance/max_violation": sum(violations) / len(measured),
            "moe_balance/worst_max_violation": max(violations),
            "moe_balance/worst_layer": float(violations.index(max(violations))),
            "moe_balance/dead_experts": sum(layer["dead_experts"] for layer in measured),
            "moe_balance/shift_spread": max(
                float(shift.max() - shift.min())
                for shift in (layer.choice.balancer.shift for layer in self.layers)
            ),
        }

    def _layer_metrics(self, layer: BalancedLayer) -> dict[str, float]:
        loads = self.tallies[layer.name].loads.cpu()
        values = load_metrics(loads, layer.choice.balancer.target.weights.cpu())
        return {name: float(value) for name, value in values.items()}

    def log_with(self, metrics_processor: Any) -> None:
        """Add the metrics to all that torchtitan's MetricsProcessor logs from now on.

        It logs on one rank: under pipeline parallelism the metrics are of that rank's stage.
        """
        log = metrics_processor.log

        @functools.wraps(log)
        def log_more(
            *args: Any, extra_metrics: Mapping[str, Any] | None = None, **kwargs: Any
        ) -> None:
            # it may come by place too: then it is the fifth
            extra_metrics = args[4] if len(args) > 4 else extra_metrics
            log(*args[:4], extra_metrics={**(extra_metrics or {}), **self.metrics()}, **kwargs)

        metrics_processor.log = log_more


def _take_bias(layer: BalancedLayer, module: nn.Module, incompatible_keys: object) -> None:
    """After the MoE has loaded a state."""
    layer.take_bias()


def _find_layers(model_parts: list[nn.Module]) -> list[BalancedLayer]:
    """All MoE layers, which must have routers of ours."""
    layers, others = [], []
    for name, moe in modules_that_count(model_parts):
        choice = getattr(moe.router, "choice", None)
        if isinstance(choice, CountedChoice):
            layers.append(BalancedLayer(name, moe, choice))
        elif moe_buffer(moe, "expert_bias") is not None:
            others.append(f"{name} ({type(moe.router).__name__})")
    if others:
        raise ValueError(
            f"these layers are to be balanced, but their routers are not ours: {', '.join(others)}"
            ". Nothing would move their bias: take BalancedTopKRouter for all layers, or set "
            "load_balance_coeff=None where there shall be no balancing"
        )
    return layers
