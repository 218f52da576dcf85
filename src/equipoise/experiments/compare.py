"""compare: the paper's experiment. The same model, first weights and batches under every scheme,
into one results folder.

results/
    manifest.json      schemes with their u and the paper's figures, seeds, preset, folders of runs
    runs/aux-0/ ...    a training each (docs/training.md), with measured.json beside result.json,
                       or failure.json if it failed
    table.json         a row for each scheme: means over seeds, spread, and each seed's values
    rows.json          all that tables and page are drawn from (results/comparison/rows_file.py)

Killed and started again it continues; finished runs are neither trained nor measured again. Schemes
and seeds of earlier calls stay in the table while their runs have the same settings.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.experiments.measure import measure
from equipoise.experiments.processes.job import Job, refuse_other_run
from equipoise.experiments.processes.jobs import run_jobs
from equipoise.experiments.schemes import SCHEMES, choose_schemes, configure_run
from equipoise.results.comparison.rows import comparison_results
from equipoise.results.comparison.rows_file import (
    COMPARISON_FORMAT,
    COMPARISON_MANIFEST,
    COMPARISON_TABLE,
    ROWS_FILE,
    ComparisonManifest,
    gather_rows,
    load_comparison_manifest,
    write_rows,
)
from equipoise.results.run import is_finished
from equipoise.storage.atomic import write_json
from equipoise.storage.locks import lock_folder
from equipoise.storage.output_path import output_path
from equipoise.storage.renamed import accept_old_argument
from equipoise.training.config import preset as training_preset
from equipoise.training.data.corpus import prepare_corpus

MAX_TRACED_SCORES = 2**17
"""a batch's scores are kept whole, for the theorems, if they are no more numbers than this"""


@accept_old_argument("at_once", "workers")
def compare(
    out: str | Path = "results",
    *,
    preset: str = "tiny",
    schemes: Sequence[str] | None = None,
    seeds: int = 1,
    workers: int | None = None,
    settled: bool = False,
    **changes: Any,
) -> list[dict[str, object]]:
    """Train every scheme, measure, and return the table's rows.

    Args:
        out: the results folder.
        preset: of every training.
        schemes: names from equipoise.experiments.schemes; all eight by default.
        seeds: how many; the table then has means and spreads.
        workers: how many trainings run side by side; by default one for each core, at most two.
        settled: evaluate every run under its settled shift too (equipoise.settled).
        changes: settings of every training, such as steps or data.

    Example:
        >>> rows = equipoise.compare("results", seeds=3, steps=300)  # doctest: +SKIP
    """
    if seeds < 1:
        raise ValueError(f"at least one seed, not {seeds}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    folder = output_path(out)
    names = [scheme.name for scheme in choose_schemes(schemes)]
    jobs = plan_runs(folder, preset, names, seeds, changes)
    # under torchrun rank 0 writes the table
    if int(os.environ.get("RANK", "0")) > 0:
        run_jobs(jobs)
        return []
    with lock_folder(folder):
        # before the manifest is replaced
        for job in jobs:
            refuse_other_run(job)
        every = [*jobs, *earlier_runs(folder, preset, jobs, changes)]
        write_json(folder / COMPARISON_MANIFEST, describe_comparison(preset, every, folder))
        # once, not in every process
        first = jobs[0].config
        prepare_corpus(first.data, vocab_size=first.model.vocab_size, tokenizer=first.tokenizer)
        run_jobs(jobs, workers=workers or min(2, os.cpu_count() or 1))
        return write_table(folder, settled=settled)


def plan_runs(
    folder: Path, preset: str, names: Sequence[str], seeds: int, changes: Mapping[str, Any]
) -> list[Job]:
    """A job for each scheme and seed."""
    return [
        plan_run(folder, preset, scheme.name, seed, changes)
        for seed in range(seeds)
        for scheme in choose_schemes(names)
    ]


def plan_run(folder: Path, preset: str, name: str, seed: int, changes: Mapping[str, Any]) -> Job:
    """The training of one scheme and seed, with what is recorded of it."""
    [scheme] = choose_schemes([name])
    settings = {
        **recording_settings(preset, changes),
        **changes,
        "seed": seed,
        "out": str(folder / "runs" / f"{name}-{seed}"),
    }
    return Job(f"{name}-{seed}", configure_run(scheme, preset, **settings))


def earlier_runs(
    folder: Path, preset: str, jobs: Sequence[Job], changes: Mapping[str, Any]
) -> list[Job]:
    """Runs that the folder's manifest has beside these, if they have the same settings: they stay
    in the table.
    """
    path = folder / COMPARISON_MANIFEST
    known = load_comparison_manifest(folder)["runs"] if path.exists() else {}
    names = {scheme.name for scheme in SCHEMES}
    found: list[Job] = []
    left_out: list[str] = []
    for name in known.keys() - {job.name for job in jobs}:
        scheme, _, seed = name.rpartition("-")
        if scheme in names and seed.isdecimal():
            job = plan_run(folder, preset, scheme, int(seed), changes)
            try:
                refuse_other_run(job)
                found.append(job)
            except ValueError:
                # one with other settings is another comparison's
                left_out.append(name)
    if left_out:
        warnings.warn(
            f"{folder} has runs with other settings, which leave its table; their folders stay: "
            f"{', '.join(sorted(left_out))}",
            stacklevel=3,
        )
    return found


def recording_settings(preset: str, changes: Mapping[str, Any]) -> Mapping[str, object]:
    """What is recorded: histograms at eleven steps; loads at fifty or so, with all scores where
    they are few.
    """
    config = training_preset(preset, **changes)
    tokens = config.batch_size * config.model.sequence_length
    few = tokens * config.model.num_experts <= MAX_TRACED_SCORES and config.micro_batch_size is None
    return {
        "histogram_steps": sorted({max(1, config.steps * n // 10) for n in range(11)}),
        "trace_every": max(1, config.steps // 50),
        "trace_scores": tokens if few else 0,
        "keep_checkpoints": 1,
    }


def describe_comparison(preset: str, jobs: Sequence[Job], folder: Path) -> ComparisonManifest:
    """The manifest: schemes in the order of SCHEMES, whatever was asked for first."""
    known, seeds = {job.name: job for job in jobs}, sorted({job.config.seed for job in jobs})
    names = {
        scheme.name: [name for seed in seeds if (name := f"{scheme.name}-{seed}") in known]
        for scheme in SCHEMES
    }
    return {
        "format": COMPARISON_FORMAT,
        "version": 1,
        "preset": preset,
        "steps": jobs[0].config.steps,
        "seeds": seeds,
        "schemes": [scheme.about(preset) for scheme in SCHEMES if names[scheme.name]],
        "runs": {
            name: str(known[name].folder.relative_to(folder))
            for each in names.values()
            for name in each
        },
    }


def write_table(folder: Path, *, settled: bool = False) -> list[dict[str, object]]:
    """Measure what has finished. Writes and returns a row for each scheme, with means over its
    seeds and what failed.
    """
    for path in load_comparison_manifest(folder)["runs"].values():
        if is_finished(folder / path):
            measure(folder / path, settled=settled)
    kept = gather_rows(folder)
    rows = [row.to_json() for row in comparison_results(kept).rows]
    write_rows(kept, folder / ROWS_FILE)
    write_json(folder / COMPARISON_TABLE, rows)
    return rows
