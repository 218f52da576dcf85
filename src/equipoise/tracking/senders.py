"""senders: how TensorBoard, W&B and trackio take numbers and a picture.

A tracker is told by what it can do: add_scalar is TensorBoard's (of torch or tensorboardX); W&B and
trackio, a run or the module itself, have `log` and a class for pictures.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

Picture = tuple[str, np.ndarray]
"""its name, and (height, width, 3) uint8"""
_WITH_LOG = ("wandb", "trackio")


def check_tracker(tracker: object) -> None:
    """Refuse what is no tracker."""
    if not hasattr(tracker, "add_scalar") and _logging_library(tracker) is None:
        name = getattr(tracker, "__name__", type(tracker).__name__)
        raise TypeError(
            f"{name} is no tracker: give a SummaryWriter (torch.utils.tensorboard), a W&B run "
            "(wandb.init), a trackio run (trackio.init), or one of these modules. Of accelerate's "
            "trackers, accelerator.get_tracker(name, unwrap=True)"
        )


def send_balance(
    tracker: Any,
    levels: Mapping[str, float],
    step: int | None,
    picture: Picture | None = None,
) -> None:
    """Send numbers, and a picture if there is one.

    Args:
        tracker: see the top of the file.
        levels: by full name.
        step: of the training; None, for W&B and trackio, lets them count their own.
        picture: with its full name.
    """
    check_tracker(tracker)
    if hasattr(tracker, "add_scalar"):
        for name, value in levels.items():
            tracker.add_scalar(name, value, step)
        if picture is not None:
            tracker.add_image(*picture, step, dataformats="HWC")
        return
    sent: dict[str, object] = dict(levels)
    if picture is not None:
        name, pixels = picture
        sent[name] = importlib.import_module(str(_logging_library(tracker))).Image(pixels)
    tracker.log(sent, **({} if step is None else {"step": step}))


def _logging_library(tracker: object) -> str | None:
    """The library that a run, or the module itself, is of."""
    home = tracker.__name__ if isinstance(tracker, ModuleType) else type(tracker).__module__
    library = home.split(".")[0]
    return library if library in _WITH_LOG and hasattr(tracker, "log") else None
