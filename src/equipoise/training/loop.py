"""train: from a config to a folder with everything about the run.

runs/a/
    config.yaml       the resolved config: `train --config` with it repeats the run
    run.json          versions, seed, corpus and its digest, parameters, ranks, machine, day
    metrics.jsonl     a line for every step and every evaluation (observers/)
    trace/            loads and shifts of every layer (equipoise.trace)
    checkpoints/      the newest few (checkpoint.py)
    .training.lock    held while a process trains here: a second one is refused
    result.json       written last, atomically: a folder that has it is a finished run
"""

from __future__ import annotations

import contextlib
import platform
import signal
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import cast

import torch

from equipoise.model import count_parameters
from equipoise.results.run import (
    RESULT_FILE,
    EvaluationMetrics,
    RunResult,
    StepMetrics,
    is_finished,
    load_result,
    pick_levels,
    read_metrics,
)
from equipoise.storage.atomic import remove_unfinished, write_json, write_text
from equipoise.training import observers
from equipoise.training.checkpoint import (
    Checkpoints,
    TrainingState,
    newest_checkpoint,
    refuse_other_config,
)
from equipoise.training.config import Config, read_config, write_yaml
from equipoise.training.data.corpus import Corpus, prepare_corpus
from equipoise.training.evaluation import summarise_training
from equipoise.training.hold_folder import hold_folder
from equipoise.training.observers.progress_bar import on_a_terminal
from equipoise.training.ranks import World, join_ranks
from equipoise.training.stopping import Stopped, StopSignals
from equipoise.training.trainer import Trainer

RECORDED_VERSIONS = ("equipoise", "torch", "numpy", "safetensors", "tokenizers")


def train(config: Config) -> RunResult:
    """Train, and return what result.json holds; on ranks other than the first an empty dict.

    Raises:
        Stopped: when SIGTERM or Ctrl-C asked for it, after a checkpoint was written.
        FloatingPointError: when the loss or the gradient is not finite.
        OSError: when a checkpoint cannot be written; the ones before it are untouched.

    Args:
        config: every setting; see `equipoise.preset`.

    Example:
        >>> config = equipoise.preset("tiny", balancer="curvature", steps=300, out="runs/a")
        >>> result = equipoise.train(config)  # doctest: +SKIP
    """
    folder = Path(config.out)
    # also before the first checkpoint: metrics and trace would continue under other settings
    if config.resume and (folder / "config.yaml").exists():
        refuse_other_config(folder, read_config(folder / "config.yaml").to_dict(), config.to_dict())
    if config.resume and is_finished(folder):
        return load_result(folder)
    _refuse_to_overwrite(folder, config)
    with join_ranks(config) as world:
        trainer = Trainer(config, _prepare_on_first_rank(config, world), world)
        with hold_folder(folder, world), StopSignals() as signals:
            if world.first:
                # again: another process may have begun and ended before the lock was ours
                _refuse_to_overwrite(folder, config)
            return _run_to_end(TrainingRun(folder, trainer, signals))


def _run_to_end(run: TrainingRun) -> RunResult:
    try:
        run.start()
        run.run_steps()
    except BaseException:
        # if closing fails too, the first error is the one to show
        with contextlib.suppress(OSError):
            run.close()
        raise
    run.close()
    return run.finish()


class TrainingRun:
    """One training in its folder: start, run_steps, close, finish."""

    def __init__(self, folder: Path, trainer: Trainer, signals: StopSignals) -> None:
        self.folder, self.trainer, self.signals = folder, trainer, signals
        self.config, self.world = trainer.config, trainer.world
        self.checkpoints = Checkpoints(
            folder / "checkpoints", self.world, self.config.keep_checkpoints
        )
        self.observers = _make_observers(folder, trainer) if self.world.first else []
        self.watching: list[observers.Observer] = []
        self.number = 0
        """steps made"""
        self.seconds = 0.0
        """spent in them, over all times the run was resumed"""

    def start(self) -> None:
        """Clear what a killed process left, load the checkpoint if there is one, and write down
        what is trained.
        """
        if self.world.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.folder)
        self.checkpoints.clear_unfinished()
        if self.config.resume:
            self._load()
        if self.world.first:
            write_text(self.folder / "config.yaml", write_yaml(replace(self.config, resume=False)))
            write_json(self.folder / "run.json", self._describe_run())
        for observer in self.observers:
            observer.resumed(self.number)
            self.watching.append(observer)

    def run_steps(self) -> None:
        """Make all steps that are left, with the evaluations and checkpoints that are due."""
        config = self.config
        while self.number < config.steps:
            started = perf_counter()
            step = self.trainer.step(
                self.number + 1, keep_scores=self._wants_scores(self.number + 1)
            )
            seconds = perf_counter() - started
            self.number, self.seconds = step.number, self.seconds + seconds
            for observer in self.observers:
                observer.stepped(step, seconds)
            if _due(self.number, config.evaluate_every) or self.number == config.steps:
                self._evaluate()
            stop = self._asked_to_stop()
            if _due(self.number, config.checkpoint_every) or self.number == config.steps or stop:
                self._save()
            if stop and self.number < config.steps:
                raise Stopped(
                    f"stopped at step {self.number} of {config.steps} by "
                    f"{signal.Signals(stop).name}. A checkpoint was written: continue with "
                    "--resume",
                    stop,
                )

    def close(self) -> None:
        for observer in self.watching:
            observer.close()

    def finish(self) -> RunResult:
        """Write result.json, on the first rank."""
        if not self.world.first:
            self.world.wait()
            return cast(RunResult, {})
        result = self._summarise()
        write_json(self.folder / RESULT_FILE, result)
        self.world.wait()
        return result

    def _evaluate(self) -> None:
        started = perf_counter()
        measured = self.trainer.evaluate()
        self.seconds += perf_counter() - started
        for observer in self.observers:
            observer.evaluated(self.number, measured)

    def _save(self) -> None:
        for observer in self.observers:
            observer.saving(self.number)
        about: TrainingState = {
            "step": self.number,
            "seconds": self.seconds,
            "sequences": self.number * self.config.batch_size,
            "config": self.config.to_dict(),
            "corpus": self.trainer.corpus.digest,
            "versions": package_versions(),
        }
        self.checkpoints.save(self.trainer.tensors(), about, sharded=self.trainer.sharded)

    def _load(self) -> None:
        tensors = self.trainer.tensors()
        about = self.checkpoints.load(tensors, self.config.to_dict(), self.trainer.corpus.digest)
        if about is not None:
            self.trainer.restore_rng(tensors)
            self.number, self.seconds = about["step"], about["seconds"]

    def _asked_to_stop(self) -> int:
        """The signal's number, if any rank received one: all must stop after the same step."""
        return int(max(self.world.sum([float(self.signals.received)]))) and (
            self.signals.received or signal.SIGTERM
        )

    def _wants_scores(self, number: int) -> bool:
        config = self.config
        sampled = bool(config.trace_scores) and _due(number, config.trace_every)
        return sampled or number in config.histogram_steps or config.keeps_batch(number)

    def _describe_run(self) -> dict[str, object]:
        """run.json: what and where it is, before anything is known about how it goes."""
        corpus, counted = self.trainer.corpus, count_parameters(self.config.model)
        return {
            "versions": package_versions(),
            "seed": self.config.seed,
            "corpus": {
                "name": corpus.name,
                "digest": corpus.digest,
                "train_tokens": len(corpus.train),
            },
            "parameters": counted._asdict(),
            "ranks": self.world.ranks,
            "device": str(self.world.device),
            "threads": torch.get_num_threads(),
            "lanes": len(self.trainer.lanes.models),
            "machine": f"{platform.machine()} {platform.system()}",
            "date": datetime.now(UTC).date().isoformat(),
        }

    def _summarise(self) -> RunResult:
        """result.json: the last evaluation, means over the training, and what the run was."""
        steps, evaluations = _split_rows(self.folder)
        last, tail = evaluations[-1], steps[-max(1, len(steps) // 10) :]
        config, corpus = self.config, self.trainer.corpus
        return {
            "validation_loss": last["loss"],
            **pick_levels(last),
            "imbalance_error": last.get("imbalance_error"),
            "floor": last.get("floor"),
            "validation_sequences": last.get("sequences"),
            **summarise_training(steps),
            "train_loss": sum(row["loss"] for row in tail) / len(tail),
            "train_imbalance": sum(row["imbalance"] for row in tail) / len(tail),
            "steps": self.number,
            "tokens": self.number * config.batch_size * config.model.sequence_length,
            "seconds": round(self.seconds, 3),
            "preset": config.preset,
            "balancer": config.balancer,
            "update_rate": config.update_rate,
            "balancer_options": dict(config.balancer_options),
            "seed": config.seed,
            "corpus": corpus.name,
            "corpus_digest": corpus.digest,
            "parameters": count_parameters(config.model).total,
            "ranks": self.world.ranks,
            "layers": last["layers"],
            "versions": package_versions(),
        }


def _split_rows(folder: Path) -> tuple[list[StepMetrics], list[EvaluationMetrics]]:
    """The rows of metrics.jsonl: steps, and evaluations."""
    rows = list(read_metrics(folder / "metrics.jsonl"))
    return (
        [row for row in rows if row["kind"] == "train"],
        [row for row in rows if row["kind"] == "validation"],
    )


def package_versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in RECORDED_VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _make_observers(folder: Path, trainer: Trainer) -> list[observers.Observer]:
    config = trainer.config
    tokens = config.batch_size * config.model.sequence_length
    chosen: list[observers.Observer] = [observers.MetricsFile(folder / "metrics.jsonl", tokens)]
    if config.trace_every and trainer.balancers:
        chosen.append(observers.TraceRecorder(folder / "trace", trainer))
    if config.histogram_steps:
        chosen.append(observers.Histograms(folder / "histograms", config))
    if events := observers.tensorboard_folder(config.log_to, folder):
        chosen.append(observers.TensorBoard(events, trainer))
    shown = observers.ProgressBar if on_a_terminal() else observers.LogLines
    chosen.append(shown(config.steps, tokens))
    return chosen


def _prepare_on_first_rank(config: Config, world: World) -> Corpus:
    """The first rank prepares the corpus; the others wait, and find it in the cache."""
    if not world.first:
        world.wait()
    corpus = _prepare_with_status(config)
    if world.first:
        world.wait()
    return corpus


def _prepare_with_status(config: Config) -> Corpus:
    """On a terminal, with a line that says what is being done: the first time takes a while."""
    if not on_a_terminal():
        return prepare_corpus(
            config.data, vocab_size=config.model.vocab_size, tokenizer=config.tokenizer
        )
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("preparing data") as status:
        return prepare_corpus(
            config.data,
            vocab_size=config.model.vocab_size,
            tokenizer=config.tokenizer,
            report=lambda text: status.update(escape(text)),
        )


def _refuse_to_overwrite(folder: Path, config: Config) -> None:
    if config.resume:
        return
    left = [folder / name for name in ("run.json", RESULT_FILE) if (folder / name).exists()]
    # a new run would take an old one's checkpoints for its own
    newest = newest_checkpoint(folder / "checkpoints")
    if left := [*left, *([newest] if newest else [])]:
        raise ValueError(
            f"{folder} already holds a run ({left[0].name}): pass --resume to continue it, or "
            "another --out"
        )


def _due(number: int, every: int) -> bool:
    return every > 0 and number % every == 0
