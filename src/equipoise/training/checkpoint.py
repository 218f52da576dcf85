"""Checkpoints: all that a training needs to go on as if nothing had happened.

    checkpoints/step-00000050/
        state.json            step, seconds, config, corpus, versions; the size of every other file
        tensors.safetensors   model.*, optimizer.*, rng.*            if one process holds the whole model
        shard-*.safetensors   the same, every rank its own part      under FSDP (torch.distributed.checkpoint)

A folder appears under its name when all of it is on the disk (files.py); until then the one before
it is the newest. Nothing is ever unpickled: tensors are safetensors, the rest is JSON.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from equipoise.balancing.shift.settling import belongs_to_settling
from equipoise.storage.atomic import UNFINISHED, publish, remove_unfinished, write_json
from equipoise.storage.optional import import_optional
from equipoise.training.config import differences
from equipoise.training.ranks import World

FORMAT = 2
"""since 2, rotary positions turn neighbouring numbers of a head: with the weights of format 1 it
would be another model
"""
WHOLE = "tensors.safetensors"
MAY_CHANGE = {"out", "resume", "checkpoint_every", "keep_checkpoints", "lanes", "parallel"}
"""settings that have no influence on what is computed; the last two round otherwise, as another
number of threads does
"""
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


class Checkpoints:
    """The checkpoints of a run's folder."""

    def __init__(self, folder: Path, world: World, keep: int) -> None:
        self.folder, self.world, self.keep = folder, world, keep

    def steps(self) -> list[int]:
        """Of those that are there, in order."""
        return sorted(
            int(path.name.removeprefix("step-")) for path in self.folder.glob("step-" + 8 * "[0-9]")
        )

    def clear_unfinished(self) -> None:
        if self.world.first and self.folder.exists():
            remove_unfinished(self.folder)

    def save(self, tensors: dict[str, Tensor], about: dict[str, Any], *, sharded: bool) -> None:
        """Write one, on all ranks together. If that fails, the ones before are untouched."""
        path = self._path(about["step"])
        if path.exists():
            return
        unfinished = self.folder / f"{UNFINISHED}{path.name}"
        try:
            if self.world.first:
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir(parents=True)
            self.world.wait()
            self._write(unfinished, tensors, sharded)
            self.world.wait()
            if self.world.first:
                sizes = {file.name: file.stat().st_size for file in sorted(unfinished.iterdir())}
                write_json(
                    unfinished / "state.json",
                    {"format": FORMAT, **about, "sharded": sharded, "files": sizes},
                )
                publish(unfinished, path)
        except (
            OSError,
            dcp.CheckpointException,
            import_optional("safetensors", extra="train").SafetensorError,
        ) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise OSError(
                f"the checkpoint of step {about['step']} could not be written: {error}. "
                f"{self._left()}"
            ) from error
        if self.world.first:
            self._forget_old()
        self.world.wait()

    def load(
        self, tensors: dict[str, Tensor], config: dict[str, Any], corpus: str
    ) -> dict[str, Any] | None:
        """Copy the newest checkpoint into the tensors and return its state.json; None if there is
        none.
        """
        if not self.steps():
            return None
        path = self._path(self.steps()[-1])
        about = json.loads((path / "state.json").read_text())
        _check(path, about, config, corpus)
        if about["sharded"]:
            _read_shards(path, tensors)
        else:
            _read_whole(path / WHOLE, tensors)
        return about

    def _write(self, folder: Path, tensors: dict[str, Tensor], sharded: bool) -> None:
        if sharded:
            writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
            dcp.save(_with_dimensions(tensors), storage_writer=writer)
        elif self.world.first:
            safetensors = import_optional("safetensors.torch", extra="train")
            safetensors.save_file(
                {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WHOLE
            )

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _left(self) -> str:
        steps = self.steps()
        if not steps:
            return "There was none before. Make room, or choose another --out"
        return f"That of step {steps[-1]} is untouched: make room and continue with --resume"

    def _forget_old(self) -> None:
        for step in self.steps()[: -self.keep]:
            # renamed first: half a folder must not look like a checkpoint
            left = self._path(step).rename(self.folder / f"{UNFINISHED}old-{step}")
            shutil.rmtree(left, ignore_errors=True)


def refuse_other_config(path: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise an error that names every setting in which the config of a run or checkpoint differs
    from the present one.
    """
    differ = {
        name: pair for name, pair in differences(there, here).items() if name not in MAY_CHANGE
    }
    if differ:
        lines = "".join(
            f"\n  {name}: {old!r} there, {new!r} here" for name, (old, new) in differ.items()
        )
        raise ValueError(
            f"{path} is of another config:{lines}\nGo on with the settings it has, or choose "
            "another --out"
        )


def _check(path: Path, about: dict[str, Any], config: dict[str, Any], corpus: str) -> None:
    if about["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {about['format']}, this version reads {FORMAT}: go on with the "
            "version that wrote it, or "
            "choose another --out"
        )
    refuse_other_config(path, about["config"], config)
    if about["corpus"] != corpus:
        raise ValueError(
            f"{path} was trained on another corpus (digest {about['corpus'][:12]}, here "
            f"{corpus[:12]}): have the texts or the "
            "installed libraries changed?"
        )
    for name, size in about["files"].items():
        there = (path / name).stat().st_size if (path / name).exists() else 0
        if there != size:
            raise ValueError(
                f"{path / name} is damaged: it has {there} bytes and should have {size}. Delete "
                f"{path} to go "
                "on from the one before it"
            )


def _read_whole(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        found = import_optional("safetensors.torch", extra="train").load_file(path)
    except import_optional("safetensors", extra="train").SafetensorError as error:
        raise ValueError(
            f"{path} is damaged: {error}. Delete {path.parent} to go on from the one before it"
        ) from None
    later = {
        name for name in tensors.keys() - found.keys() if belongs_to_settling(name)
    }  # it starts at the next update
    if missing := (found.keys() ^ tensors.keys()) - later:
        raise ValueError(
            f"{path} and this training do not have the same tensors: "
            f"{', '.join(sorted(missing)[:5])}"
        )
    if any(hasattr(tensor, "full_tensor") for tensor in tensors.values()):
        raise ValueError(
            f"{path} holds a whole model: go on with --parallel ddp or a single process"
        )
    with torch.no_grad():
        for name in tensors.keys() - later:
            tensors[name].copy_(found[name])


def _read_shards(path: Path, tensors: dict[str, Tensor]) -> None:
    """In place; on as many ranks as there are now, whatever wrote them."""
    shaped = _with_dimensions(tensors)
    dcp.load(
        shaped,
        storage_reader=dcp.HuggingFaceStorageReader(str(path)),
        no_dist=not dist.is_initialized(),
    )


def _with_dimensions(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The storage cannot slice what has no dimensions; views share memory, so that loading reaches
    the originals.
    """
    return {
        name: tensor.view(1) if tensor.dim() == 0 else tensor for name, tensor in tensors.items()
    }
