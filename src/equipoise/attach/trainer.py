"""The callback for transformers' Trainer: steps after the optimizer, logs, saves with checkpoints
and resumes from them.
"""

from __future__ import annotations

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

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
        ) -> None:
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

    return BalancingCallback()


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
