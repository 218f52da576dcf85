"""Sidecar: `equipoise.safetensors`, the balancers' state beside a model, an adapter or a
checkpoint.

A model's own file holds its biases, and no adapter's does. Neither holds what a rule remembers
(momentum, histograms' widths, the number of updates), nor the shift of a family without a bias.
This file does, in float32 and int64, never pickled.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.attach.state.fingerprint import fingerprint
from equipoise.balancing.shift.settling import belongs_to_settling
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.attach.balance import Balancing

NAME = "equipoise.safetensors"
_FORMAT = "1"


def save(balancing: Balancing, folder: Path) -> Path:
    """Write the state into `folder`, whole or not at all."""
    tensors = {
        key: value.detach().cpu().clone().contiguous() for key, value in state(balancing).items()
    }
    metadata = {
        "equipoise": _FORMAT,
        "steps": str(balancing.steps),
        "dropped": str(balancing.dropped),
    }
    metadata["weights"] = fingerprint(balancing.seats)
    folder.mkdir(parents=True, exist_ok=True)
    path, unfinished = folder / NAME, folder / f".{NAME}.{os.getpid()}"
    try:
        import_optional("safetensors.torch", extra="hf").save_file(
            tensors, unfinished, metadata=metadata
        )
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


class SaveBeside:
    """An adapter's `save_pretrained`, which writes the sidecar too: else the biases would be lost
    without a word.

    An object and not a function, so that a copy of the model saves the copy, without our state.
    """

    def __init__(self, balancing: Balancing | None, own: Callable[..., Any]) -> None:
        self.balancing = balancing
        self.own = own

    def __call__(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> Any:
        answer = self.own(save_directory, *args, **kwargs)
        if self.balancing is not None and kwargs.get("is_main_process", True):
            self.balancing.save(save_directory)
        return answer

    def __deepcopy__(self, memo: dict[int, Any]) -> SaveBeside:
        return SaveBeside(None, copy.deepcopy(self.own, memo))


def load(balancing: Balancing, folder: Path) -> str:
    """Take over the state in `folder`, and return the fingerprint of the weights it was saved
    beside.
    """
    path = folder / NAME if folder.is_dir() else folder
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: balancing.save(folder) writes it, and Trainer's checkpoints "
            "hold it"
        )
    safetensors = import_optional("safetensors", extra="hf")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): load another checkpoint's") from error
    if metadata.get("equipoise") != _FORMAT:
        raise ValueError(f"{path} was not written by equipoise, or by another version of it")
    take_over(balancing, tensors, source=str(path))
    balancing.steps, balancing.dropped = int(metadata["steps"]), int(metadata["dropped"])
    return metadata.get("weights", "{}")


def state(balancing: Balancing) -> dict[str, Tensor]:
    """All balancers' state, by router and name."""
    tensors = {}
    for seat in balancing.seats:
        seat.refresh()
        for name, value in seat.balancer.state_dict().items():
            tensors[f"{seat.name}/{name}"] = value
        tensors[f"{seat.name}/mean"] = seat.mean
        tensors[f"{seat.name}/anneal_left"] = torch.tensor(seat.anneal_left)
    return tensors


def take_over(balancing: Balancing, tensors: dict[str, Tensor], source: str) -> None:
    """Set all balancers' state: whole or not at all."""
    by_router: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        router, _, name = key.rpartition("/")
        by_router.setdefault(router, {})[name] = value
    names = {seat.name for seat in balancing.seats}
    if names != set(by_router):
        raise ValueError(
            f"{source} is of another model: it lacks {sorted(names - set(by_router))} and has "
            f"{sorted(set(by_router) - names)}"
        )
    for seat in balancing.seats:
        _check_alike(seat.name, seat.balancer.state_dict(), by_router[seat.name], source)
    for seat in balancing.seats:
        values = by_router[seat.name]
        seat.mean, seat.anneal_left = (
            values.pop("mean").to(seat.mean.device),
            int(values.pop("anneal_left")),
        )
        seat.balancer.load_state_dict(values)
        seat.drop()
        seat.offer()
    balancing.loaded = True


def _check_alike(
    router: str, mine: dict[str, Tensor], theirs: dict[str, Tensor], source: str
) -> None:
    mine = {
        name: value
        for name, value in mine.items()
        if name in theirs or not belongs_to_settling(name)
    }
    shapes = {name: tuple(value.shape) for name, value in mine.items()} | {
        "mean": (),
        "anneal_left": (),
    }
    if shapes != {name: tuple(value.shape) for name, value in theirs.items()}:
        raise ValueError(
            f"{source} holds the state of another balancer than the one of {router}: make one of "
            "the same name"
        )
