"""The step of all LayerBalancers of a model: one collective, one update of each.

    loss.backward(); optimizer.step(); equipoise.step(model); optimizer.zero_grad()

Call it once after every optimizer step, on every rank. A step that the optimizer skipped
(GradScaler met an infinity) is forgotten by `equipoise.drop(model)`;
`equipoise.follow(model, optimizer)` calls the right one of both by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor, nn

from equipoise.balancing.step_metrics import BalanceMetrics, step_metrics
from equipoise.layers.layer_balancer import LayerBalancer
from equipoise.routing.rank_group import check_default_group
from equipoise.routing.reduce import reduce_across_devices


class ModelSteps:
    """The LayerBalancers of one model, and the loads of their last step.

    Args:
        model: any module that holds LayerBalancers, wrapped or not.
        group: the ranks that hold different tokens, if not all.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        self.model = model
        self.group = group
        self.layers = find_layer_balancers(model)
        self.loads: dict[str, Tensor] = {}
        """(E,) int64 by layer, of the last step, over all ranks"""
        self.dropped = 0
        """steps that were forgotten"""

    @property
    def gradients_wait(self) -> bool:
        """Whether gradients came back since the last step, and no step was taken from them yet."""
        return any(layer.counted is not None for layer in self.layers.values())

    def step(self) -> None:
        """Update every balancer by what was trained on since the last step."""
        if self.group is None:
            check_default_group(self.model)
        _check_trained(self.layers)
        tallies = {name: layer.take_tally() for name, layer in self.layers.items()}
        tallies = reduce_across_devices(tallies, self.group)
        for name, layer in self.layers.items():
            layer.balancer.update(tallies[name])
        self.loads = {name: tally.loads for name, tally in tallies.items()}

    def drop(self) -> None:
        """Forget what was counted since the last step, with a warning."""
        for layer in self.layers.values():
            layer.forget()
        self.dropped += 1
        warnings.warn("a step was skipped: what was counted for it is dropped", stacklevel=3)

    def metrics(self) -> BalanceMetrics:
        """The last step: means over layers, the worst layer, and each layer's own.

        On a GPU it waits for the device.
        """
        balancers = {name: layer.balancer for name, layer in self.layers.items()}
        steps = max(int(balancer.steps) for balancer in balancers.values())
        return step_metrics(balancers, self.loads, steps, self.dropped)


def step(model: nn.Module, group: dist.ProcessGroup | None = None) -> ModelSteps:
    """Update every LayerBalancer in a model: call it once after every `optimizer.step()`.

    The answer holds the loads of this step, and `metrics()` measures them.

    Args:
        model: any module that holds LayerBalancers, wrapped or not.
        group: the ranks that hold different tokens, if not all. Must be given where the model shows
            tensor or expert parallelism.

    Example:
        >>> model = torch.nn.Sequential(equipoise.LayerBalancer("deepseek", 4, 2))
        >>> model(torch.rand(8, 4, requires_grad=True)).gates.sum().backward()
        >>> sorted(equipoise.step(model).metrics()["layers"])
        ['0']
    """
    steps = ModelSteps(model, group)
    steps.step()
    return steps


def drop(model: nn.Module) -> None:
    """Forget what every LayerBalancer of a model counted since the last step: where the optimizer
    skipped its own, or a backward pass raised half-way.

    Args:
        model: in which LayerBalancers have counted.

    Example:
        >>> model = torch.nn.Sequential(equipoise.LayerBalancer("deepseek", 8, 2))
        >>> model(torch.rand(32, 8, requires_grad=True)).gates.sum().backward()
        >>> equipoise.drop(model)  # doctest: +SKIP
    """
    ModelSteps(model).drop()


def find_layer_balancers(model: nn.Module) -> dict[str, LayerBalancer]:
    """All of a model, by name; one that is shared by several layers stands there once."""
    found = {
        name: module for name, module in model.named_modules() if isinstance(module, LayerBalancer)
    }
    if not found:
        raise ValueError(
            f"{type(model).__name__} holds no equipoise.LayerBalancer: let each MoE layer own one, "
            "or call equipoise.balance(model) to balance routers that know nothing of it"
        )
    return found


def _check_trained(layers: Mapping[str, LayerBalancer]) -> None:
    """Refuse a step for which nothing was counted, or a layer that never is."""
    missed = [name for name, layer in layers.items() if layer.entered and not layer.ever_counted]
    if missed:
        raise RuntimeError(
            f"no gradient came back to the gates of {', '.join(missed)}, although forwards ran in "
            "training: the loss must depend on routing.gates, and backward() come before step(). "
            "A frozen router under reentrant checkpointing is not seen either: use "
            "use_reentrant=False"
        )
    if all(layer.counted is None for layer in layers.values()):
        raise RuntimeError(
            "nothing was counted since the last step: no gradient came back from a training "
            "forward (model.train(), loss.backward()). Is step() called twice, by hand and by "
            "follow()?"
        )
