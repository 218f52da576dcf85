"""measure: what a finished run is worth beyond its loss, written to measured.json in its folder.

The last checkpoint is loaded, and eight batches from all over the validation set go through it. For
each batch and MoE layer, with scores (T, E), the exact optimum with even loads is solved
(equipoise.optimum):

    given_up    (K largest scores of every token - optimum) / the former: the affinity that this network gives up at exactly
                even loads. All schemes are compared at the same balance so; with their own loads, the uneven keep more.
                Never below 0
    dual_gap    (dual(shift) - optimum) / optimum: never below 0, and 0 only if the shift is optimal. Top-K of scores + shift
                is optimal for the loads it makes, so this is all there is to gain
    idle_share  device time lost waiting for the fullest of 8 devices, in each forward

    settled_    on request: validation loss and imbalance under the settled shift (equipoise.settled), which training never
                routes by. It takes another evaluation

The theorems' verdicts on the run's trace are there too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from equipoise.balancing import Dual
from equipoise.balancing import settled as with_settled_shift
from equipoise.optimum import evaluate
from equipoise.results.run import (
    MEASURED_FILE,
    MEASURED_FORMAT,
    Measured,
    RunResult,
    VerdictRow,
    load_json,
    load_measured,
    load_result,
)
from equipoise.storage.atomic import write_json
from equipoise.theorems import verify
from equipoise.trace import Trace, is_trace
from equipoise.training.data.batches import validation_batches
from equipoise.training.evaluation import DEVICES, device_idle_share
from equipoise.training.open_run import open_run
from equipoise.training.scores import watch_scores
from equipoise.training.trainer import Trainer

BATCHES = 8
"""validation batches that are solved"""


def measure(folder: Path, *, settled: bool = False) -> Measured:
    """Measure a finished run, or read what was measured before; `settled` also under its settled
    shift.
    """
    found = load_measured(folder)
    known = found.get("format") == MEASURED_FORMAT
    if known and (not settled or "settled_loss" in found):
        return found
    trainer = open_finished(folder)
    measured = found if known else all_but_settled(folder, trainer)
    if settled:
        measured = {**measured, **under_settled_shift(trainer, load_result(folder))}
    write_json(folder / MEASURED_FILE, measured)
    return measured


def all_but_settled(folder: Path, trainer: Trainer) -> Measured:
    return {
        "format": MEASURED_FORMAT,
        **against_optimum(trainer),
        **of_shifts(folder / "trace"),
        **of_scores(folder / "histograms", trainer.config.model.num_experts),
        "verdicts": verdicts(folder),
    }


def open_finished(folder: Path) -> Trainer:
    """The model of a run's last step; a stopped run has none."""
    run = open_run(folder)
    if run.step != run.config.steps:
        raise ValueError(
            f"{folder} has no checkpoint of its last step, {run.config.steps}: finish it with "
            "--resume"
        )
    return run.trainer


@torch.no_grad()
def against_optimum(trainer: Trainer) -> Measured:
    """Means over validation batches and layers."""
    trainer.model.eval()
    rows: list[dict[str, float]] = []
    loads: dict[str, list[np.ndarray]] = {name: [] for name in trainer.balancers}
    for tokens, targets in _validation(trainer):
        with watch_scores(trainer.net) as scores:
            trainer.model(tokens.to(trainer.world.device), targets.to(trainer.world.device))
        for name, seen in scores.items():
            row, counted = _beside_optimum(seen.numpy(), trainer, name)
            rows.append(row)
            loads[name].append(counted)
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return {
        "batches": len(rows) // len(loads),
        "devices": DEVICES,
        "given_up": means["given_up"],
        "dual_gap": means["dual_gap"],
        "batch_imbalance": means["batch_imbalance"],
        "idle_share": _idle(loads),
    }


def _validation(trainer: Trainer) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches from all over the validation set, of the size that a forward of the training had."""
    config, S = trainer.config, trainer.config.model.sequence_length
    number = min(BATCHES * trainer.micro_batch, config.validation_sequences or sys.maxsize)
    return validation_batches(trainer.corpus.validation, S, trainer.micro_batch, number)


def _beside_optimum(
    scores: np.ndarray, trainer: Trainer, name: str
) -> tuple[dict[str, float], np.ndarray]:
    shift = trainer.balancers[name].shift_or_zeros.cpu().double().numpy()
    found = evaluate(scores, trainer.config.model.top_k, shift)
    value, top_k = found.optimum.value, trainer.config.model.top_k
    free = float(np.partition(scores.astype(np.float64), -top_k, axis=1)[:, -top_k:].sum())
    row = {
        "given_up": max(0.0, (free - value) / free),
        "dual_gap": max(0.0, found.dual_gap / value),
        "batch_imbalance": found.imbalance,
    }
    return row, found.loads


def _idle(loads: dict[str, list[np.ndarray]]) -> float | None:
    """Over layers and forwards; None where the experts do not divide over the devices."""
    forwards = np.concatenate([np.stack(each) for each in loads.values()])
    return device_idle_share(torch.from_numpy(forwards))


def under_settled_shift(trainer: Trainer, result: RunResult) -> Measured:
    """Validation loss and imbalance under the settled shift; the run's own where that is its last
    shift.
    """
    duals = [each for each in trainer.balancers.values() if isinstance(each, Dual)]
    if all(torch.equal(each.settled_shift, each.shift) for each in duals):
        return {"settled_loss": result["validation_loss"], "settled_imbalance": result["imbalance"]}
    with with_settled_shift(trainer.net):
        found = trainer.evaluate()
    return {"settled_loss": found.loss, "settled_imbalance": float(np.mean(found.imbalance))}


def of_shifts(trace: Path) -> Measured:
    """The mean of the last shifts, and the largest max p - min p of any recorded step (the paper's
    figure 4).
    """
    if not is_trace(trace):
        return {}
    read = Trace.open(trace)
    last = [read.record(layer, read.steps(layer)[-1]).shift_after for layer in read.layers]
    every = [
        read.record(layer, step).shift_after for layer in read.layers for step in read.steps(layer)
    ]
    return {
        "shift_mean": float(np.mean([shift.mean(dtype=np.float64) for shift in last])),
        "shift_diameter": float(max(np.ptp(shift) for shift in every)),
    }


def of_scores(histograms: Path, num_experts: int) -> Measured:
    """E times the standard deviation of the scores in the first and last histogram (the paper's
    figure 3).
    """
    kept = sorted(histograms.glob("step-*.json"))
    if not kept:
        return {}
    first, last = (num_experts * _score_spread(load_json(path)) for path in (kept[0], kept[-1]))
    return {"score_spread_first": first, "score_spread_last": last}


def _score_spread(step: Mapping[str, Any]) -> float:
    """Mean over layers, from bins of equal width."""
    found = []
    for layer in step["layers"].values():
        counts, edge = np.asarray(layer["scores"]["counts"], float), layer["scores"]["to"]
        middles = (np.arange(len(counts)) + 0.5) * edge / len(counts)
        mean = np.average(middles, weights=counts)
        found.append(float(np.average((middles - mean) ** 2, weights=counts) ** 0.5))
    return float(np.mean(found))


def verdicts(folder: Path) -> list[VerdictRow]:
    if not is_trace(folder / "trace"):
        return []
    return [
        cast(VerdictRow, verdict._asdict())
        for verdict in verify(Trace.open(folder / "trace"), batches=6)
    ]
