"""The callback for transformers' Trainer: steps after the optimizer, logs, saves with checkpoints
and resumes from them.

It is the callback of a model that is balanced already (`balancing.callback()`); the one that needs
no model is in trainer_callback.py.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.attach.trainer_checkpoints import load_best_state, resume_state
from equipoise.balancing.step_metrics import LOGGED_METRICS
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.attach.balance import Balancing

_transformers = import_optional("transformers", extra="hf")
_Base: Any = _transformers.TrainerCallback


class StepCallback(_Base):
    """Moves the balancers of one model with its Trainer."""

    def __init__(self, balancing: Balancing | None = None) -> None:
        self.balancing = balancing
        """of the model in training"""

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _move_to_front(self)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        _move_to_front(self)
        self.meet_model(model)
        balancing = self._known_balancing()
        _check_trained_model(balancing, model)
        if state.global_step > 0:
            resume_state(balancing, args, state)

    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        if getattr(optimizer, "step_was_skipped", False):
            self._known_balancing().drop()
        else:
            self._known_balancing().step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.balancing is None or logs is None or "loss" not in logs:
            return
        measured = self.balancing.metrics()
        shown = {name: round(measured[name], 4) for name in LOGGED_METRICS if name in measured}
        logs.update(shown)
        if state.log_history:
            state.log_history[-1].update(shown)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.balancing is not None and state.is_world_process_zero:
            self.balancing.save(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            load_best_state(self._known_balancing(), Path(state.best_model_checkpoint))

    def meet_model(self, model: Any) -> None:
        """Training begins with this model, which is balanced already."""

    def _known_balancing(self) -> Balancing:
        if self.balancing is None:
            raise RuntimeError(
                "this callback has no model yet: it balances the one of its Trainer when training "
                "begins, so add it before trainer.train()"
            )
        return self.balancing


def _move_to_front(callback: StepCallback) -> None:
    """Let our callback come before the others of its Trainer.

    Trainer puts those that report (TensorBoard, W&B ...) before the user's own: they would have
    logged when `on_log` adds our numbers, and uploaded a checkpoint before our file is in it. No
    event is given the handler, nor anything that leads to it (docs/decisions.md), so it is looked
    for among the callers. Moving it while the handler goes through its list is safe: who comes
    after it keeps his place.
    """
    handler_class = _transformers.trainer_callback.CallbackHandler
    frame = inspect.currentframe()
    while frame is not None and not isinstance(frame.f_locals.get("self"), handler_class):
        frame = frame.f_back
    if frame is not None:
        callbacks = frame.f_locals["self"].callbacks
        if callback in callbacks:
            callbacks[:] = [callback, *(each for each in callbacks if each is not callback)]


def _check_trained_model(balancing: Balancing, model: Any) -> None:
    """Refuse a Trainer of another model, or of a copy of the balanced one."""
    lost = [] if model is None else lost_routers(balancing, model)
    if lost:
        raise ValueError(
            f"the Trainer trains another model than the balanced one: {lost[0]} is not part of it"
        )


def lost_routers(balancing: Balancing, model: Any) -> list[str]:
    """The balanced routers that are not part of a model, by name."""
    modules = set(model.modules())
    return [router.name for router in balancing.routers if router.found.block not in modules]
