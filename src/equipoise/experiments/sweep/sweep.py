"""sweep: every training of a grid, here or on a Ray cluster, into one results folder; then the best
setting of each scheme.

results/
    manifest.json    the trials with their settings, and what they have in common
    trials/NAME/     a training each (docs/training.md); failure.json if it failed
    table.json       best settings, all settings sorted by validation loss, failures

Killed and started again it continues. Finished trials are not repeated, failed ones only if asked.
Several sweeps of the same grid may work in the folder at once, on one machine or several: each
trial is made by the process that holds its lock (storage/locks.py). A grid may grow: values added
to its axes are new trials in the same folder. Any other grid is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.experiments.processes.attempt import clear_failures, outcome_of
from equipoise.experiments.processes.display import Display
from equipoise.experiments.processes.engines import Engine, make_engine
from equipoise.experiments.sweep.grid import Grid, Trial, read_grid
from equipoise.experiments.sweep.ranking import rank_settings, scheme_of
from equipoise.results.sweep import (
    SWEEP_FORMAT,
    SWEEP_MANIFEST,
    SWEEP_TABLE,
    SweepManifest,
    SweepTable,
    SweepTableJson,
    TrialAbout,
    load_manifest,
)
from equipoise.storage.atomic import write_json
from equipoise.storage.locks import wait_for_lock
from equipoise.storage.output_path import output_path
from equipoise.storage.renamed import accept_old_argument
from equipoise.training.data.corpus import prepare_corpus
from equipoise.training.settings import (
    MAY_CHANGE,
    FlatSettings,
    describe_differences,
    refuse_other_settings,
)

FOLDER_LOCK = ".sweep-lock"
"""held for moments; not the lock that a comparison holds while it runs"""


@accept_old_argument("at_once", "workers")
def sweep(
    grid: str | Path | Grid,
    out: str | Path | None = None,
    *,
    engine: str = "local",
    workers: int = 1,
    address: str | None = None,
    cpus_per_trial: float = 1,
    gpus_per_trial: float = 0,
    processes_per_trial: int | None = None,
    retry_failed: bool = False,
    keep_checkpoints: bool = False,
) -> SweepTableJson:
    """Train the whole grid, and return what table.json holds.

    Args:
        grid: a YAML file (grid.py), a built-in one by name, or a Grid.
        out: the results folder; by default runs/sweep- and the grid's name.
        engine: "local" or "ray".
        workers: trials side by side, on the local engine.
        address: of the Ray cluster; by default that of $RAY_ADDRESS, or one of this machine alone.
        cpus_per_trial, gpus_per_trial: what Ray keeps for each.
        processes_per_trial: more than one run under torchrun; by default one for each GPU.
        retry_failed: run those again that failed before.
        keep_checkpoints: keep those of finished trials.

    Example:
        >>> table = equipoise.sweep("demo", workers=2)  # doctest: +SKIP
    """
    grid = grid if isinstance(grid, Grid) else read_grid(grid)
    folder = grid.default_folder if out is None else output_path(out)
    trials = grid.trials(folder)
    processes = max(1, int(gpus_per_trial)) if processes_per_trial is None else processes_per_trial
    if processes < 1:
        raise ValueError(f"at least one process for a trial, not {processes}")
    chosen = make_engine(
        engine, workers, address, cpus_per_trial, gpus_per_trial, processes, keep_checkpoints
    )
    enter_folder(folder, trials)
    if retry_failed:
        clear_failures([trial.job for trial in trials])
    try:
        _run_trials(chosen, trials, prepare_first=engine == "local")
    finally:
        found = write_ranking(folder)
    return found.to_json()


def _run_trials(engine: Engine, trials: Sequence[Trial], *, prepare_first: bool) -> None:
    todo = [trial.job for trial in trials if outcome_of(trial.job) is None]
    with Display(sum(job.config.steps for job in todo)) as display:
        if len(todo) < len(trials):
            display.say(f"{len(trials) - len(todo)} of {len(trials)} trials had ended before")
        # once, not in every process
        if todo and prepare_first:
            for data, size, coder in {
                (job.config.data, job.config.model.vocab_size, job.config.tokenizer) for job in todo
            }:
                prepare_corpus(data, vocab_size=size, tokenizer=coder)
        if todo:
            engine.run(todo, display)


def enter_folder(folder: Path, trials: Sequence[Trial]) -> None:
    """Write the manifest, unless the folder holds another grid's."""
    ours = describe_trials(trials)
    _refuse_other_content(folder, ours)  # before anything is written there
    folder.mkdir(parents=True, exist_ok=True)
    # two that start together must not both take themselves for the first
    with wait_for_lock(folder / FOLDER_LOCK):
        _refuse_other_content(folder, ours)
        write_json(folder / SWEEP_MANIFEST, ours)


def _refuse_other_content(folder: Path, ours: SweepManifest) -> None:
    if (folder / SWEEP_MANIFEST).exists():
        refuse_other_sweep(folder, load_manifest(folder), ours)
    elif folder.exists() and (
        left := sorted(each.name for each in folder.iterdir() if each.name[0] != ".")
    ):
        raise ValueError(
            f"{folder} holds something else ({', '.join(left[:3])}): choose another folder"
        )


def describe_trials(trials: Sequence[Trial]) -> SweepManifest:
    """What the trials have in common, and what each has of its own."""
    configs = {trial.name: _flatten_config(trial.job.config.to_dict()) for trial in trials}
    first = next(iter(configs.values()))
    common = {
        key: value
        for key, value in first.items()
        if all(key in config and config[key] == value for config in configs.values())
    }
    about: dict[str, TrialAbout] = {}
    for trial in trials:
        config = trial.job.config
        scheme, label = scheme_of(config.balancer, config.look_ahead > 0)
        own = {key: value for key, value in configs[trial.name].items() if key not in common}
        about[trial.name] = {
            "scheme": scheme,
            "label": label,
            "settings": trial.settings,
            "config": own,
        }
    return {"format": SWEEP_FORMAT, "version": 1, "common": common, "trials": about}


def refuse_other_sweep(folder: Path, there: SweepManifest, here: SweepManifest) -> None:
    """Every trial that is there must be one of ours, with the same settings."""
    if there.get("format") != SWEEP_FORMAT:
        raise ValueError(
            f"{folder} holds an {there.get('format', 'unknown kind of results')}: choose another "
            "folder"
        )
    lines = _describe_missing_values(there["trials"], here["trials"])
    for name in there["trials"].keys() & here["trials"].keys():
        old, new = (each["common"] | each["trials"][name]["config"] for each in (there, here))
        lines += describe_differences(old, new)
    refuse_other_settings(
        f"{folder} holds another sweep", lines, "Choose another folder, or delete that one"
    )


def _describe_missing_values(
    there: dict[str, TrialAbout], here: dict[str, TrialAbout]
) -> list[str]:
    """By axis; trial by trial where the values are all here and a combination of them is not."""
    gone = [name for name in there if name not in here]
    lines = []
    for key in dict.fromkeys(key for name in gone for key in there[name]["settings"]):
        known = [about["settings"].get(key) for about in here.values()]
        values = dict.fromkeys(repr(there[name]["settings"].get(key)) for name in gone)
        if missing := [value for value in values if value not in map(repr, known)]:
            lines.append(f"{key}: {', '.join(missing)} there, not here")
    return lines or [f"trial {name}: there, not here" for name in gone]


def write_ranking(folder: Path) -> SweepTable:
    """Write table.json, of all trials in the manifest: another sweep may have added some since."""
    with wait_for_lock(folder / FOLDER_LOCK):
        found = rank_settings(folder, load_manifest(folder))
        write_json(folder / SWEEP_TABLE, found.to_json())
    return found


def _flatten_config(config: Mapping[str, Any], prefix: str = "") -> FlatSettings:
    """{"model": {"top_k": 2}} as {"model.top_k": 2}, without what may change."""
    found: FlatSettings = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flatten_config(value, f"{prefix}{key}.")
        elif key not in MAY_CHANGE or prefix:
            found[f"{prefix}{key}"] = value
    return found
