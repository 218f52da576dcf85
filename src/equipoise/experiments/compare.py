"""compare: the paper's experiment. The same model, first weights and batches under every scheme, into one results folder.

results/
    manifest.json        the schemes with their u and the paper's figures, seeds, preset, and where each run is
    runs/aux-0/ ...      a training each (docs/training.md), with measured.json beside its result.json
    table.json           a row for each scheme: means over seeds and their spread
    failure.json         in a run's folder, if it failed

Killed and started again it goes on; finished runs are neither trained nor measured again.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.experiments.job import Job, failure
from equipoise.experiments.jobs import locked, run
from equipoise.experiments.measure import measure
from equipoise.experiments.schemes import chosen, configure
from equipoise.training.config import preset as training_preset
from equipoise.training.corpus import prepare
from equipoise.training.files import write_json

FORMAT = "equipoise comparison"
FIGURES = ("validation_loss", "imbalance", "max_violation", "idle_share", "given_up", "dual_gap", "seconds")
WHOLE_TRACE = 2**17
"""scores of a batch are kept whole, for the theorems, while they are no more numbers than this"""


def compare(
    out: str | Path,
    *,
    preset: str = "tiny",
    schemes: Sequence[str] | None = None,
    seeds: int = 1,
    at_once: int | None = None,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Train, measure, and return the table's rows. `changes` are settings of every training, such as steps or data.

    Args:
        out: the results folder.
        preset: of every training.
        schemes: names from equipoise.experiments.schemes; all eight by default.
        seeds: how many; the table then has means and spreads.
        at_once: how many trainings run side by side; by default one for each core, at most two.
    """
    if seeds < 1:
        raise ValueError(f"at least one seed, not {seeds}")
    folder = Path(out)
    names = [scheme.name for scheme in chosen(schemes)]
    jobs = plan_runs(folder, preset, names, seeds, changes)
    if int(os.environ.get("RANK", "0")) > 0:  # torchrun: the first rank keeps the books
        run(jobs)
        return []
    with locked(folder):
        write_json(folder / "manifest.json", manifest(preset, names, seeds, jobs, folder))
        first = jobs[0].config
        prepare(first.data, vocab_size=first.model.vocab_size, tokenizer=first.tokenizer)  # once, not in every process
        run(jobs, at_once=at_once or min(2, os.cpu_count() or 1))
        rows = table(folder)
        write_json(folder / "table.json", rows)
    return rows


def plan_runs(folder: Path, preset: str, names: Sequence[str], seeds: int, changes: dict[str, Any]) -> list[Job]:
    watched = watching(preset, changes)
    return [
        Job(
            f"{scheme.name}-{seed}",
            configure(
                scheme, preset, **{**watched, **changes}, seed=seed, out=str(folder / "runs" / f"{scheme.name}-{seed}")
            ),
        )
        for seed in range(seeds)
        for scheme in chosen(names)
    ]


def watching(preset: str, changes: dict[str, Any]) -> dict[str, Any]:
    """What is recorded: histograms at eleven steps; loads at fifty or so, with all scores where they are few."""
    config = training_preset(preset, **changes)
    tokens = config.batch_size * config.model.sequence_length
    few = tokens * config.model.num_experts <= WHOLE_TRACE and config.micro_batch_size is None
    return {
        "histogram_steps": sorted({max(1, config.steps * n // 10) for n in range(11)}),
        "trace_every": max(1, config.steps // 50),
        "trace_scores": tokens if few else 0,
        "keep_checkpoints": 1,
    }


def manifest(preset: str, names: Sequence[str], seeds: int, jobs: Sequence[Job], folder: Path) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": 1,
        "preset": preset,
        "steps": jobs[0].config.steps,
        "seeds": list(range(seeds)),
        "schemes": [scheme.about(preset) for scheme in chosen(names)],
        "runs": {job.name: str(job.folder.relative_to(folder)) for job in jobs},
    }


def table(folder: Path) -> list[dict[str, Any]]:
    """A row for each scheme: mean and spread (standard deviation) over the seeds that finished, and what failed."""
    about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return [_row(folder, about, scheme) for scheme in about["schemes"]]


def _row(folder: Path, about: dict[str, Any], scheme: dict[str, Any]) -> dict[str, Any]:
    found, failed = [], []
    for seed in about["seeds"]:
        run_folder = folder / about["runs"][f"{scheme['name']}-{seed}"]
        if (run_folder / "result.json").exists():
            result = json.loads((run_folder / "result.json").read_text(encoding="utf-8"))
            found.append({**result, **measure(run_folder)})
        else:
            failed.append({"seed": seed, "error": failure(run_folder) or "not finished"})
    row: dict[str, Any] = {**scheme, "seeds": len(found), "failed": failed}
    for name in FIGURES:
        values = [each[name] for each in found if each[name] is not None]
        row[name] = statistics.fmean(values) if values else None
        row[f"{name}_spread"] = statistics.stdev(values) if len(values) > 1 else None
    return row
