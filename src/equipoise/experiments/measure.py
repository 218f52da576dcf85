"""measure: what a finished run is worth beyond its loss, written to measured.json in its folder.

The last checkpoint is loaded, and eight batches from all over the validation set go through it. For
each batch and MoE layer, with scores (T, E), the exact optimum with even loads is solved
(equipoise.optimum):

    given_up     (K largest scores of every token - optimum) / the former: the affinity that this
                 network gives up at exactly even loads. So all schemes are compared at the same
                 balance; with their own loads, the uneven ones keep more. Never below 0
    dual_gap     (dual(shift) - optimum) / optimum: never below 0, and 0 only if the shift is
                 optimal. Top-K of scores + shift is optimal for the loads it makes, so this is all
                 there is to gain
    idle_share   device time lost waiting for the fullest of 8 devices, in each forward

    settled_*    on request: validation loss and imbalance under the settled shift
                 (equipoise.settled), which training never routes by; another evaluation

The verdicts of the theorems on the run's trace are there too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict, cast

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
from equipoise.training.evaluation import DEVICES, device_idle_share, target_weights
from equipoise.training.open_run import open_run
from equipoise.training.scores import watch_scores
from equipoise.training.trainer import Trainer

MEASURED_BATCHES = 8
"""validation batches that are solved"""
VERIFIED_BATCHES = 6
"""batches of the trace on which the theorems are checked"""


class OptimumFigures(TypedDict):
    """A run beside the exact optimum: means over batches and layers."""

    batches: int
    devices: int
    given_up: float
    dual_gap: float
    batch_imbalance: float
    idle_share: float | None


class LayerFigures(NamedTuple):
    """One layer in one batch."""

    given_up: float
    dual_gap: float
    batch_imbalance: float
    loads: np.ndarray
    """(E,)"""


class SettledFigures(TypedDict):
    """Validation under the settled shift."""

    settled_loss: float
    settled_imbalance: float


def measure(folder: Path, *, settled: bool = False) -> Measured:
    """Measure a finished run, or read what was measured before. `settled` also measures it under
    its settled shift.
    """
    found = load_measured(folder)
    known = found.get("format") == MEASURED_FORMAT
    if known and (not settled or "settled_loss" in found):
        return found
    trainer = open_finished(folder)
    measured = found if known else _measure_all_but_settled(folder, trainer)
    if settled:
        measured = {**measured, **measure_settled(trainer, load_result(folder))}
    write_json(folder / MEASURED_FILE, measured)
    return measured


def _measure_all_but_settled(folder: Path, trainer: Trainer) -> Measured:
    return {
        "format": MEASURED_FORMAT,
        **measure_against_optimum(trainer),
        **measure_shifts(folder / "trace"),
        **measure_scores(folder / "histograms", trainer.config.model.num_experts),
        "verdicts": verify_run(folder),
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
def measure_against_optimum(trainer: Trainer) -> OptimumFigures:
    """Means over validation batches and layers."""
    trainer.model.eval()
    seen: dict[str, list[LayerFigures]] = {name: [] for name in trainer.balancers}
    for tokens, targets in _validation_sample(trainer):
        with watch_scores(trainer.net) as scores:
            trainer.model(tokens.to(trainer.world.device), targets.to(trainer.world.device))
        for name, of_layer in scores.items():
            seen[name].append(_compare_with_optimum(of_layer.numpy(), trainer, name))
    # batch by batch, all layers of each: the order in which numbers are added is part of the result
    rows = [row for batch in zip(*seen.values(), strict=True) for row in batch]
    loads = np.concatenate([np.stack([row.loads for row in layer]) for layer in seen.values()])
    return {
        "batches": len(rows) // len(seen),
        "devices": DEVICES,
        "given_up": float(np.mean([row.given_up for row in rows])),
        "dual_gap": float(np.mean([row.dual_gap for row in rows])),
        "batch_imbalance": float(np.mean([row.batch_imbalance for row in rows])),
        "idle_share": device_idle_share(torch.from_numpy(loads)),
    }


def _validation_sample(trainer: Trainer) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches from all over the validation set, of the size that a forward of the training had."""
    config, S = trainer.config, trainer.config.model.sequence_length
    number = min(MEASURED_BATCHES * trainer.micro_batch, config.validation_sequences or sys.maxsize)
    return validation_batches(trainer.corpus.validation, S, trainer.micro_batch, number)


def _compare_with_optimum(scores: np.ndarray, trainer: Trainer, name: str) -> LayerFigures:
    top_k = trainer.config.model.top_k
    shift = trainer.balancers[name].shift_or_zeros.cpu().double().numpy()
    found = evaluate(scores, top_k, shift, target=_uneven_loads(trainer, name, len(scores)))
    value = found.optimum.value
    free = float(np.partition(scores.astype(np.float64), -top_k, axis=1)[:, -top_k:].sum())
    return LayerFigures(
        given_up=max(0.0, (free - value) / free),
        dual_gap=max(0.0, found.dual_gap / value),
        batch_imbalance=found.imbalance,
        loads=found.loads,
    )


def _uneven_loads(trainer: Trainer, name: str, tokens: int) -> np.ndarray | None:
    """The loads that the layer's target asks of so many tokens; None where they are equal."""
    weights = target_weights(trainer.balancers[name])
    if weights is None:
        return None
    return (weights * (tokens * trainer.config.model.top_k / weights.sum())).numpy()


def measure_settled(trainer: Trainer, result: RunResult) -> SettledFigures:
    """The run's own figures where its last shift is the settled one."""
    duals = [each for each in trainer.balancers.values() if isinstance(each, Dual)]
    if all(torch.equal(each.settled_shift, each.shift) for each in duals):
        return {"settled_loss": result["validation_loss"], "settled_imbalance": result["imbalance"]}
    with with_settled_shift(trainer.net):
        found = trainer.evaluate()
    return {"settled_loss": found.loss, "settled_imbalance": float(np.mean(found.imbalance))}


def measure_shifts(trace: Path) -> Measured:
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


def measure_scores(histograms: Path, num_experts: int) -> Measured:
    """E times the standard deviation of the scores in the first and last histogram (the paper's
    figure 3).
    """
    kept = sorted(histograms.glob("step-*.json"))
    if not kept:
        return {}
    return {
        "score_spread_first": num_experts * _mean_score_spread(kept[0]),
        "score_spread_last": num_experts * _mean_score_spread(kept[-1]),
    }


def _mean_score_spread(path: Path) -> float:
    """Mean over layers of the standard deviation, from bins of equal width."""
    found = []
    for layer in load_json(path)["layers"].values():
        counts, edge = np.asarray(layer["scores"]["counts"], float), layer["scores"]["to"]
        middles = (np.arange(len(counts)) + 0.5) * edge / len(counts)
        mean = np.average(middles, weights=counts)
        found.append(float(np.average((middles - mean) ** 2, weights=counts) ** 0.5))
    return float(np.mean(found))


def verify_run(folder: Path) -> list[VerdictRow]:
    """The theorems on the run's trace; none where there is no trace."""
    if not is_trace(folder / "trace"):
        return []
    found = verify(Trace.open(folder / "trace"), batches=VERIFIED_BATCHES)
    return [cast(VerdictRow, verdict._asdict()) for verdict in found]
