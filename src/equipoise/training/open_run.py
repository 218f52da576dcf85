"""open_run: the model of a training's folder, as its newest checkpoint has it.

    run = open_run("runs/a")
    run.model(tokens)              DeepSeekMoE with the trained weights and shifts, in evaluation
    run.step, run.config           how far it was trained, and with which settings

Measuring a finished run and recording its scores both begin here. What could make the numbers
those of another model is refused: a checkpoint of another format or with damaged files, settings
that differ between config.yaml and the checkpoint, and a corpus that has changed since (its
tokenizer may have been trained on it, so that the same text would be other tokens).

Only weights and balancers are read, not the optimizer's state: a model to look at needs a third of
the memory of one to train. To continue a training use `train` with `resume`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.model import DeepSeekMoE
from equipoise.training.checkpoint import (
    newest_checkpoint,
    read_state,
    read_tensors,
    refuse_changed_files,
    refuse_other_config,
    refuse_other_corpus,
)
from equipoise.training.config import Config, preset, read_config, update_config
from equipoise.training.data.corpus import Corpus, prepare_corpus
from equipoise.training.ranks import World, choose_device
from equipoise.training.trainer import Trainer


@dataclass(frozen=True)
class OpenedRun:
    """A training that is only looked at. `trainer` can evaluate; it is not meant to step."""

    folder: Path
    config: Config
    step: int
    """of the checkpoint; config.steps if the training has finished"""
    trainer: Trainer

    @property
    def model(self) -> DeepSeekMoE:
        return self.trainer.net

    @property
    def corpus(self) -> Corpus:
        return self.trainer.corpus


def open_run(folder: str | Path, *, device: str | None = None) -> OpenedRun:
    """Open the folder of a finished or stopped training, on this process alone.

    Args:
        folder: the training's `out`.
        device: where the model goes; by default where its config says.

    Raises:
        ValueError: if the folder holds no training, no checkpoint, or one that does not belong to
            its config or corpus.
    """
    folder = Path(folder)
    config = read_run_config(folder)
    path = newest_checkpoint(folder / "checkpoints")
    if path is None:
        raise ValueError(
            f"{folder} has no checkpoint to run: train with --checkpoint-every, or choose another "
            "folder"
        )
    state = read_state(path)
    # read as a config first, so that settings younger than the checkpoint have their defaults
    there = dict(state["config"])
    resolved = update_config(preset(str(there.pop("preset", "tiny"))), there)
    refuse_other_config(path, resolved.to_dict(), config.to_dict())
    corpus = prepare_corpus(
        config.data, vocab_size=config.model.vocab_size, tokenizer=config.tokenizer
    )
    refuse_other_corpus(path, state["corpus"], corpus.digest)
    refuse_changed_files(path, state)
    trainer = _build_trainer(config, corpus, device)
    weights = {f"model.{name}": tensor for name, tensor in trainer.net.state_dict().items()}
    read_tensors(path, state, weights, prefix="model.")
    trainer.net.eval()
    return OpenedRun(folder, config, state["step"], trainer)


def read_run_config(folder: Path) -> Config:
    """The config of a training, from its folder."""
    path = folder / "config.yaml"
    if not path.exists():
        raise ValueError(f"{folder} is not the folder of a training: there is no config.yaml in it")
    return read_config(path)


def _build_trainer(config: Config, corpus: Corpus, device: str | None) -> Trainer:
    """Uncompiled: a few forwards are done before a compiler would be."""
    wanted = replace(config, compile=False, device=config.device if device is None else device)
    return Trainer(wanted, corpus, World(0, 1, choose_device(wanted)))
