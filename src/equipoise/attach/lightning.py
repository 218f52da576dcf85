"""Lightning: a callback that steps after the optimizer, logs, and keeps the balancers' state in
Lightning's checkpoints.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from equipoise.attach.state.sidecar import balancer_state, restore_state
from equipoise.balancing.step_metrics import LOGGED_METRICS
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.attach.balance import Balancing


def make_lightning_callback(balancing: Balancing) -> Any:
    """A Callback of whichever of `lightning` and `pytorch_lightning` is in use.

    Of several optimizers, the last one is followed: balancers step after it.
    """
    package = (
        "pytorch_lightning"
        if _in_use("pytorch_lightning") and not _in_use("lightning.pytorch")
        else "lightning.pytorch"
    )
    base = import_optional(package, extra="lightning").Callback

    class BalancingCallback(base):  # type: ignore[misc, valid-type]
        """Moves the balancers of one model with its Trainer."""

        def on_train_start(self, trainer: Any, module: Any) -> None:
            balancing.follow(trainer.optimizers[-1])

        def on_train_end(self, trainer: Any, module: Any) -> None:
            balancing.unfollow()

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            # not at every step: measuring waits for the GPU
            if trainer.global_step % trainer.log_every_n_steps:
                return
            measured = balancing.metrics()
            if "imbalance" in measured:
                logged = {f"balance/{name}": measured[name] for name in LOGGED_METRICS}
                module.log_dict(logged, on_step=True)

        def state_dict(self) -> dict[str, object]:
            tensors = {
                key: value.detach().cpu().clone()
                for key, value in balancer_state(balancing).items()
            }
            return {"steps": balancing.steps, "dropped": balancing.dropped, "tensors": tensors}

        def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
            restore_state(balancing, dict(state_dict["tensors"]), source="the Lightning checkpoint")
            balancing.steps, balancing.dropped = state_dict["steps"], state_dict["dropped"]

    return BalancingCallback()


def _in_use(package: str) -> bool:
    """Whether the user's own code has imported it."""
    return package in sys.modules
