"""The callback for transformers' Trainer: steps after the optimizer, logs, saves with checkpoints
and resumes from them.
"""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.attach.state import sidecar
from equipoise.attach.state.fingerprint import changed_routers, weight_fingerprint
from equipoise.attach.step_metrics import LOGGED_METRICS
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from equipoise.attach.balance import Balancing


def make_trainer_callback(balancing: Balancing) -> TrainerCallback:
    """A TrainerCallback. Its class is made here, so that equipoise can be imported without
    transformers.
    """
    base = import_optional("transformers", extra="hf").TrainerCallback

    class BalancingCallback(base):  # type: ignore[misc, valid-type]
        """Moves the balancers of one model with its Trainer."""

        def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            _move_to_front(self)

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
        ) -> None:
            _move_to_front(self)
            _check_trained_model(balancing, model)
            if state.global_step > 0:
                _resume_state(balancing, args, state)

        def on_optimizer_step(
            self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
        ) -> None:
            if getattr(optimizer, "step_was_skipped", False):
                balancing.drop()
            else:
                balancing.step()

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            if logs is None or "loss" not in logs:
                return
            measured = balancing.metrics()
            shown = {name: round(measured[name], 4) for name in LOGGED_METRICS if name in measured}
            logs.update(shown)
            if state.log_history:
                state.log_history[-1].update(shown)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_world_process_zero:
                balancing.save(_checkpoint_folder(args, state))

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if args.load_best_model_at_end and state.best_model_checkpoint is not None:
                _load_best_state(balancing, Path(state.best_model_checkpoint))

    return BalancingCallback()


def _move_to_front(callback: TrainerCallback) -> None:
    """Let our callback come before the others of its Trainer.

    Trainer puts those that report (TensorBoard, W&B ...) before the user's own: they would have
    logged when `on_log` adds our numbers, and uploaded a checkpoint before our file is in it. A
    callback is not given its handler, so it is looked for among the callers. Moving it while the
    handler goes through its list is safe: who comes after it keeps his place.
    """
    handler_class = import_optional("transformers", extra="hf").trainer_callback.CallbackHandler
    frame = inspect.currentframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, handler_class):
            others = [each for each in handler.callbacks if each is not callback]
            if len(others) < len(handler.callbacks):
                handler.callbacks[:] = [callback, *others]
            return
        frame = frame.f_back


def _load_best_state(balancing: Balancing, folder: Path) -> None:
    """Trainer has put back the weights of its best checkpoint: their shifts belong to them."""
    if (folder / sidecar.SIDECAR_NAME).is_file():
        _check_restored_weights(balancing, sidecar.load_sidecar(balancing, folder), folder)
    else:
        warnings.warn(
            f"Trainer loaded the best model's weights from {folder}, which has no "
            f"{sidecar.SIDECAR_NAME}: the balancers' state is that of the last step",
            stacklevel=2,
        )


def _checkpoint_folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _resume_state(balancing: Balancing, args: Any, state: Any) -> None:
    """Take over the state in the checkpoint that Trainer resumes from."""
    named = args.resume_from_checkpoint
    folders = [*([Path(named)] if isinstance(named, str) else []), _checkpoint_folder(args, state)]
    for folder in folders:
        if (folder / sidecar.SIDECAR_NAME).is_file():
            _check_restored_weights(balancing, sidecar.load_sidecar(balancing, folder), folder)
            return
    if not balancing.loaded:
        raise FileNotFoundError(
            f"training resumes at step {state.global_step}, but {' or '.join(map(str, folders))} "
            f"has no {sidecar.SIDECAR_NAME}: call balancing.load(folder) before trainer.train(), "
            "with the checkpoint's folder"
        )


def _check_restored_weights(balancing: Balancing, saved: str, folder: Path) -> None:
    """Trainer may not have loaded the experts (state/fingerprint.py): then the biases belong to
    other experts than these.
    """
    others = changed_routers(saved, weight_fingerprint(balancing.routers))
    if others:
        warnings.warn(
            f"the experts or gates of {len(others)} routers ({others[0]} ...) are not those of "
            f"{folder}: transformers' Trainer does not restore fused experts (its issue 48805). "
            "Make the model by from_pretrained of that folder, then resume",
            stacklevel=2,
        )


def _check_trained_model(balancing: Balancing, model: Any) -> None:
    """Refuse a Trainer of another model, or of a copy of the balanced one."""
    if model is None:
        return
    modules = set(model.modules())
    lost = [router.name for router in balancing.routers if router.found.block not in modules]
    if lost:
        raise ValueError(
            f"the Trainer trains another model than the balanced one: {lost[0]} is not part of it"
        )
