"""TrackingCallback: transformers' Trainer tells its reporters how even the loads are.

    balancing = equipoise.balance(model, "curvature")
    Trainer(..., callbacks=[balancing.callback(), TrackingCallback(balancing)])

Numbers go into the logs of every logging step, so that each reporter sends them as it sends the
loss. Pictures are no part of such logs: they are handed to TensorBoard, W&B and trackio, through
the writer or run that Trainer's own callbacks opened; other reporters are sent the numbers only.
"""

from __future__ import annotations

import inspect
from typing import Any

from equipoise.attach import Balancing
from equipoise.integrations.attached_layers import watch_switches
from equipoise.integrations.trackers import TRACKED_DEVICES, layer_balances
from equipoise.storage.optional import import_optional
from equipoise.tracking import balance_levels, load_picture, send_balance

_CallbackBase: Any = import_optional("transformers", extra="hf").TrainerCallback
TRAIN_PREFIX = "train/"
"""what reporters put before a name that is not of an evaluation"""


class TrackingCallback(_CallbackBase):
    """Sends a balanced model's numbers and pictures through the Trainer's reporters.

    Args:
        balancing: what `equipoise.balance` returned; None: that of another callback of the same
            Trainer, which may balance the model only when training begins.
        image_every: steps between pictures; 0: none.
        devices: for idle time.
    """

    def __init__(
        self,
        balancing: Balancing | None = None,
        *,
        image_every: int = 100,
        devices: int = TRACKED_DEVICES,
    ) -> None:
        self.balancing, self.image_every, self.devices = balancing, image_every, devices

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _put_first(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _put_first(self)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        watch_switches(self._find_balancing())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        due = self.image_every and state.global_step % self.image_every == 0
        if due and state.is_world_process_zero and self._find_balancing().last_tallies:
            layers = layer_balances(self._find_balancing(), devices=self.devices)
            picture = load_picture(layers, state.global_step, f"{TRAIN_PREFIX}balance")
            for reporter in _callbacks_beside(self):
                _send_picture(reporter, picture, state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # not the logs of an evaluation or of the end
        if logs is None or "loss" not in logs or not self._find_balancing().last_tallies:
            return
        layers = layer_balances(self._find_balancing(), devices=self.devices)
        levels = {f"balance/{name}": value for name, value in balance_levels(layers).items()}
        logs.update(levels)
        if state.log_history:
            state.log_history[-1].update(levels)

    def _find_balancing(self) -> Balancing:
        """Our own, or that of the callback that balances."""
        if self.balancing is not None:
            return self.balancing
        for other in _callbacks_beside(self):
            found = getattr(other, "balancing", None)
            if isinstance(found, Balancing):
                return found
        raise RuntimeError(
            "TrackingCallback knows no balanced model: give it what equipoise.balance returned, "
            "TrackingCallback(balancing)"
        )


def _send_picture(reporter: Any, picture: Any, step: int) -> None:
    """Through what a reporter of Trainer has opened; one that takes no pictures is passed over."""
    writer = getattr(reporter, "tb_writer", None)
    if writer is not None:
        send_balance(writer, {}, step, picture)
    for name in ("_wandb", "_trackio"):
        library = getattr(reporter, name, None)
        if library is not None and getattr(reporter, "_initialized", False):
            # they count their own steps, as Trainer lets them
            send_balance(library, {f"{TRAIN_PREFIX}global_step": step}, None, picture)


def _put_first(callback: Any) -> None:
    """Before the reporters, who would have logged when `on_log` adds our numbers."""
    callbacks = _callbacks_beside(callback)
    if callback in callbacks:
        callbacks[:] = [callback, *(each for each in callbacks if each is not callback)]


def _callbacks_beside(callback: Any) -> list[Any]:
    """The list of callbacks of the Trainer that calls this one. A callback is not given it, so it
    is looked for among the callers.
    """
    handler_class = import_optional("transformers", extra="hf").trainer_callback.CallbackHandler
    frame = inspect.currentframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, handler_class) and callback in handler.callbacks:
            return handler.callbacks
        frame = frame.f_back
    return []
