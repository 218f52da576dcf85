"""The checkpoints of transformers' Trainer: the balancers' state in them, taken over again.

Each holds `equipoise.safetensors` beside the model's weights, and a state belongs to the weights it
was saved beside: Trainer may not have loaded all of those (state/fingerprint.py), and says nothing.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.attach.state import sidecar
from equipoise.attach.state.fingerprint import changed_routers, weight_fingerprint

if TYPE_CHECKING:
    from equipoise.attach.balance import Balancing


def resume_state(balancing: Balancing, args: Any, state: Any) -> None:
    """Take over the state in the checkpoint that Trainer resumes from."""
    named = args.resume_from_checkpoint
    written = Path(args.output_dir) / f"checkpoint-{state.global_step}"
    folders = [*([Path(named)] if isinstance(named, str) else []), written]
    for folder in folders:
        if (folder / sidecar.SIDECAR_NAME).is_file():
            _check_restored_weights(balancing, sidecar.load_sidecar(balancing, folder), folder)
            return
    if not balancing.loaded:
        raise FileNotFoundError(
            f"training resumes at step {state.global_step}, but {' or '.join(map(str, folders))} "
            f"has no {sidecar.SIDECAR_NAME}: call balancing.load(folder) before trainer.train(), "
            "with the checkpoint's folder (balancing = equipoise.balance(model), and its "
            "balancing.callback() in place of a TrainerCallback). A checkpoint of a training "
            "without equipoise has none: begin a new training from its weights"
        )


def load_best_state(balancing: Balancing, folder: Path) -> None:
    """Trainer has put back the weights of its best checkpoint: their shifts belong to them."""
    if (folder / sidecar.SIDECAR_NAME).is_file():
        _check_restored_weights(balancing, sidecar.load_sidecar(balancing, folder), folder)
    else:
        warnings.warn(
            f"Trainer loaded the best model's weights from {folder}, which has no "
            f"{sidecar.SIDECAR_NAME}: the balancers' state is that of the last step",
            stacklevel=2,
        )


def _check_restored_weights(balancing: Balancing, saved: str, folder: Path) -> None:
    """Trainer may not have loaded the experts: then the biases belong to other experts than
    these.
    """
    others = changed_routers(saved, weight_fingerprint(balancing.routers))
    if others:
        warnings.warn(
            f"the experts or gates of {len(others)} routers ({others[0]} ...) are not those of "
            f"{folder}: transformers' Trainer does not restore fused experts (its issue 48805). "
            "Make the model by from_pretrained of that folder, then resume",
            stacklevel=2,
        )
