"""Checkpoints: all that a training needs to continue as if nothing had happened.

    checkpoints/step-00000050/
        state.json            step, seconds, config, corpus, versions; sizes, digests of files
        tensors.safetensors   model.*, optimizer.*, rng.*     if one process holds the whole model
        shard-*.safetensors   the same, a part by each rank   under FSDP

A folder appears under its name when all of it is on the disk (storage/atomic.py); until then the
one before it is the newest. Nothing is ever unpickled: tensors are safetensors, the rest is JSON.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from equipoise.balancing.older_states import may_be_missing
from equipoise.storage.atomic import UNFINISHED, publish_folder, remove_unfinished, write_json
from equipoise.storage.json_files import read_json_object
from equipoise.storage.optional import import_optional
from equipoise.training.ranks import World
from equipoise.training.settings import describe_differences, refuse_other_settings

CHECKPOINT_FORMAT = 2
"""Since 2, rotary positions turn neighbouring numbers of a head: with weights of format 1 it would
be another model.
"""
WHOLE_FILE = "tensors.safetensors"
STATE_KEYS = ("format", "step", "seconds", "config", "corpus", "sharded", "files")
"""of state.json: what a training cannot continue without"""
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


class TrainingState(TypedDict):
    """Where a training is, apart from its tensors."""

    step: int
    """steps made"""
    seconds: float
    """spent in them"""
    sequences: int
    """read so far"""
    config: dict[str, Any]
    """as Config.to_dict gives it"""
    corpus: str
    """digest of the tokens"""
    versions: dict[str, str]


class CheckpointState(TrainingState):
    """state.json."""

    format: int
    sharded: bool
    files: dict[str, int]
    """name -> bytes, of the files with tensors"""
    digests: NotRequired[dict[str, str]]
    """name -> SHA-256 of the file; older checkpoints have none"""


class Checkpoints:
    """The checkpoints of a run's folder."""

    def __init__(self, folder: Path, world: World, keep: int) -> None:
        self.folder, self.world, self.keep = folder, world, keep

    def steps(self) -> list[int]:
        """Of those that are there, in order."""
        return checkpoint_steps(self.folder)

    def clear_unfinished(self) -> None:
        if self.world.first and self.folder.exists():
            remove_unfinished(self.folder)

    def save(self, tensors: dict[str, Tensor], about: TrainingState, *, sharded: bool) -> None:
        """Write one, on all ranks together. If that fails, the ones before are untouched."""
        path = _step_folder(self.folder, about["step"])
        if path.exists():
            return
        unfinished = self.folder / f"{UNFINISHED}{path.name}"
        errors = (
            OSError,
            dcp.CheckpointException,
            import_optional("safetensors", extra="train").SafetensorError,
        )
        try:
            if self.world.first:
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir(parents=True)
            self.world.wait()
            self._write(unfinished, tensors, sharded)
            self.world.wait()
            if self.world.first:
                written = sorted(unfinished.iterdir())
                sizes = {file.name: file.stat().st_size for file in written}
                state: CheckpointState = {
                    "format": CHECKPOINT_FORMAT,
                    **about,
                    "sharded": sharded,
                    "files": sizes,
                    "digests": {file.name: _file_digest(file) for file in written},
                }
                write_json(unfinished / "state.json", state)
                publish_folder(unfinished, path)
        except errors as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise OSError(
                f"the checkpoint of step {about['step']} could not be written: {error}. "
                f"{self._what_is_left()}"
            ) from error
        if self.world.first:
            self._delete_old()
        self.world.wait()

    def load(
        self, tensors: dict[str, Tensor], config: Mapping[str, Any], corpus: str
    ) -> CheckpointState | None:
        """Copy the newest checkpoint into the tensors. Returns its state, None if there is none."""
        path = newest_checkpoint(self.folder)
        if path is None:
            return None
        state = read_state(path)
        refuse_other_config(path, state["config"], config)
        refuse_other_corpus(path, state["corpus"], corpus)
        self._refuse_changed_files(path, state)
        read_tensors(path, state, tensors)
        return state

    def _refuse_changed_files(self, path: Path, state: CheckpointState) -> None:
        """Looked at by the first rank, refused by all: every rank would read every file."""
        changed = changed_file(path, state) if self.world.first else None
        if any(self.world.sum([float(changed is not None)])):
            _refuse_changed_file(changed or path)

    def _write(self, folder: Path, tensors: dict[str, Tensor], sharded: bool) -> None:
        if sharded:
            writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
            dcp.save(_with_dimensions(tensors), storage_writer=writer)
        elif self.world.first:
            safetensors = import_optional("safetensors.torch", extra="train")
            safetensors.save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WHOLE_FILE
            )

    def _what_is_left(self) -> str:
        steps = self.steps()
        if not steps:
            return "There was none before. Make room, or choose another --out"
        return f"That of step {steps[-1]} is untouched: make room and continue with --resume"

    def _delete_old(self) -> None:
        for step in self.steps()[: -self.keep]:
            # renamed first: half a folder must not look like a checkpoint
            old = self.folder / f"{UNFINISHED}old-{step}"
            shutil.rmtree(_step_folder(self.folder, step).rename(old), ignore_errors=True)


def _step_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def newest_checkpoint(folder: Path) -> Path | None:
    """The folder of the newest checkpoint in a run's `checkpoints` folder, if there is one."""
    steps = checkpoint_steps(folder)
    return _step_folder(folder, steps[-1]) if steps else None


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    found = folder.glob("step-" + 8 * "[0-9]")
    return sorted(int(path.name.removeprefix("step-")) for path in found)


def read_state(path: Path) -> CheckpointState:
    """The state.json of a checkpoint. Refuses a format of another version, and damaged files."""
    remedy = f"delete {path} to continue from the one before it"
    found = read_json_object(path / "state.json", keys=("format",), remedy=remedy)
    if found["format"] != CHECKPOINT_FORMAT:
        raise ValueError(
            f"{path} has format {found['format']}, this version reads {CHECKPOINT_FORMAT}: "
            "continue with the version that wrote it, or choose another --out"
        )
    state = cast(
        CheckpointState, read_json_object(path / "state.json", keys=STATE_KEYS, remedy=remedy)
    )
    if not isinstance(state["files"], dict) or not isinstance(state["config"], dict):
        raise ValueError(f"{path / 'state.json'} is damaged: {remedy}")
    for name, size in state["files"].items():
        there = (path / name).stat().st_size if (path / name).exists() else 0
        if there != size:
            raise ValueError(
                f"{path / name} is damaged: it has {there} bytes and should have {size}. "
                f"Delete {path} to continue from the one before it"
            )
    return state


def changed_file(path: Path, state: CheckpointState) -> Path | None:
    """The first of a checkpoint's files whose content is not what was written; None if all are."""
    digests = state.get("digests", {})
    return next(
        (path / name for name in digests if _file_digest(path / name) != digests[name]), None
    )


def refuse_changed_files(path: Path, state: CheckpointState) -> None:
    """Refuse a checkpoint of which a bit is not what was written."""
    if (changed := changed_file(path, state)) is not None:
        _refuse_changed_file(changed)


def _refuse_changed_file(changed: Path) -> None:
    raise ValueError(
        f"{changed} is damaged: its content is not what was written (another digest). Delete the "
        "checkpoint's folder to continue from the one before it"
    )


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_other_config(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a run or checkpoint with other settings than the present ones."""
    refuse_other_settings(
        f"{path} is of another config",
        describe_differences(there, here),
        "Continue with the settings it has, or choose another --out",
    )


def refuse_other_corpus(path: Path, there: str, here: str) -> None:
    """Refuse a checkpoint that was trained on other tokens, given both digests."""
    if there != here:
        raise ValueError(
            f"{path} was trained on another corpus (digest {there[:12]}, here {here[:12]}): "
            "have the texts or the installed libraries changed?"
        )


def read_tensors(
    path: Path, state: CheckpointState, tensors: dict[str, Tensor], *, prefix: str = ""
) -> None:
    """Copy a checkpoint into the tensors. `prefix` limits what must be there to such names:
    "model." for weights without the optimizer.
    """
    if state["sharded"]:
        _read_shards(path, tensors)
    else:
        _read_whole(path / WHOLE_FILE, tensors, prefix)


def _read_whole(path: Path, tensors: dict[str, Tensor], prefix: str) -> None:
    safetensors = import_optional("safetensors", extra="train")
    try:
        with safetensors.safe_open(path, "pt") as file:
            names: list[str] = list(file.keys())
            found = {name for name in names if name.startswith(prefix)}
            later = _refuse_other_tensors(path, found, tensors)
            with torch.no_grad():
                for name in tensors.keys() - later:
                    found_tensor = file.get_tensor(name)
                    _refuse_other_shape(path, name, found_tensor, tensors[name])
                    tensors[name].copy_(found_tensor)
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} is damaged: {error}. Delete {path.parent} to continue from the one before it"
        ) from None


def _refuse_other_shape(path: Path, name: str, found: Tensor, wanted: Tensor) -> None:
    """Copying would repeat a tensor of shape (1, 1) over the whole weight."""
    if found.shape != wanted.shape:
        raise ValueError(
            f"{path}: {name} has shape {tuple(found.shape)}, this training has "
            f"{tuple(wanted.shape)}. Delete {path.parent} to continue from the one before it"
        )


def _refuse_other_tensors(path: Path, found: set[str], tensors: dict[str, Tensor]) -> set[str]:
    """Returns the names that are missing and may be: they begin with the next update."""
    later = {name for name in tensors.keys() - found if may_be_missing(name)}
    if missing := (found ^ tensors.keys()) - later:
        raise ValueError(
            f"{path} and this training do not have the same tensors: "
            f"{', '.join(sorted(missing)[:5])}"
        )
    if any(hasattr(tensor, "full_tensor") for tensor in tensors.values()):
        raise ValueError(
            f"{path} holds a whole model: continue with --parallel ddp or a single process"
        )
    return later


def _read_shards(path: Path, tensors: dict[str, Tensor]) -> None:
    """In place; on as many ranks as there are now, whatever wrote them."""
    shaped = _with_dimensions(tensors)
    dcp.load(
        shaped,
        storage_reader=dcp.HuggingFaceStorageReader(str(path)),
        no_dist=not dist.is_initialized(),
    )


def _with_dimensions(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The storage cannot slice a tensor without dimensions, so scalars become views of shape (1,).
    Views share memory: loading into them reaches the originals.
    """
    return {
        name: tensor.view(1) if tensor.dim() == 0 else tensor for name, tensor in tensors.items()
    }
