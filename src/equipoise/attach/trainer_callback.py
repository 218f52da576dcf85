"""The Trainer callback that needs no model: it balances the one that its Trainer begins to train.

So it serves where a model is made by others: from a path, by model_init, by a trainer that is
driven by YAML.
"""

from __future__ import annotations

from typing import Any

from equipoise.attach.balance import balance
from equipoise.attach.making import Maker
from equipoise.attach.trainer import StepCallback, lost_routers


class TrainerCallback(StepCallback):
    """Balances the model that a Trainer trains, from the moment its training begins.

    Args:
        balancer: as for `equipoise.balance`.
        **options: all that `equipoise.balance` takes, but `optimizer`: `group`, `skip`, `trace`,
            `trace_scores`, and the balancer's own options.

    Example:
        >>> callback = equipoise.TrainerCallback("curvature")
        >>> callback.balancing is None  # until trainer.train()
        True
    """

    def __init__(self, balancer: Maker = "deepseek", **options: Any) -> None:
        super().__init__()
        if "optimizer" in options:
            raise TypeError(
                "TrainerCallback steps after its Trainer's optimizer: leave optimizer= out"
            )
        self.balancer = balancer
        self.options = options

    def __repr__(self) -> str:
        return f"TrainerCallback({self.balancer!r})"

    def meet_model(self, model: Any) -> None:
        """Balance it, unless it is balanced by this callback already: a Trainer may train one model
        twice, or make a new one for every training.
        """
        if self.balancing is not None:
            if not lost_routers(self.balancing, model):
                return
            self.balancing.detach()
        self.balancing = balance(model, self.balancer, **self.options)
