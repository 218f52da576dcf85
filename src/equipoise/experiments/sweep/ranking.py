"""ranking: what a sweep found. A row for each setting, and for each scheme the setting with the
lowest validation loss.

Trials that differ only in their seed are one setting: means over its seeds, and their spread
(standard deviation). Only a setting whose seeds have all finished can be the best one: a mean over
fewer seeds has more variance, so the lowest of many such means is too low.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.experiments.schemes import SCHEMES
from equipoise.results.columns import SWEEP_KEYS
from equipoise.results.over_seeds import OverSeeds
from equipoise.results.run import RunResult, is_finished, load_failure, load_result
from equipoise.results.sweep import FailedTrial, SettingRow, SweepManifest, SweepTable, TrialAbout

NUMBER = int | float


@dataclass(frozen=True)
class _TrialOutcome:
    name: str
    about: TrialAbout
    result: RunResult | None
    """None where it has not finished"""


def rank_settings(folder: Path, manifest: SweepManifest) -> SweepTable:
    """Best settings, all settings sorted by validation loss, and what failed or is not finished."""
    settings: dict[str, list[_TrialOutcome]] = {}
    failed: list[FailedTrial] = []
    unfinished: list[str] = []
    for name, about in manifest["trials"].items():
        path, result = folder / "trials" / name, None
        if is_finished(path):
            result = load_result(path)
        elif (error := load_failure(path)) is not None:
            failed.append({"trial": name, "settings": about["settings"], "error": error})
        else:
            unfinished.append(name)
        trial = _TrialOutcome(name, about, result)
        settings.setdefault(_setting_key(about["settings"]), []).append(trial)
    rows = sorted((_setting_row(trials) for trials in settings.values()), key=_rank)
    return SweepTable(best_settings(rows, manifest), rows, failed, unfinished)


def best_settings(rows: Iterable[SettingRow], manifest: SweepManifest) -> list[SettingRow]:
    """For each scheme its first complete row, and which of its values stand at an end of what was
    tried.
    """
    found: dict[str, SettingRow] = {}
    for row in rows:
        if row.complete and row.loss is not None and math.isfinite(row.loss):
            found.setdefault(row.scheme, row)
    order = dict.fromkeys(about["scheme"] for about in manifest["trials"].values())
    return [
        replace(found[name], at_the_end=_at_the_end(found[name], manifest))
        for name in order
        if name in found
    ]


def _at_the_end(row: SettingRow, manifest: SweepManifest) -> list[str]:
    """Axes on which a better value may lie beyond."""
    ends = []
    for key, value in row.settings.items():
        tried = {
            about["settings"][key]
            for about in manifest["trials"].values()
            if about["scheme"] == row.scheme and isinstance(about["settings"].get(key), NUMBER)
        }
        if len(tried) > 1 and value in (min(tried), max(tried)):
            ends.append(key)
    return ends


def _setting_row(trials: list[_TrialOutcome]) -> SettingRow:
    about = trials[0].about
    done: list[tuple[str, Mapping[str, Any]]] = [
        (str(trial.about["settings"].get("seed", "")), trial.result)
        for trial in trials
        if trial.result is not None
    ]
    return SettingRow(
        about["scheme"],
        about["label"],
        {key: value for key, value in about["settings"].items() if key != "seed"},
        len(trials),
        len(done),
        {key: OverSeeds.of_values({seed: run[key] for seed, run in done}) for key in SWEEP_KEYS},
        [trial.name for trial in trials],
    )


def _rank(row: SettingRow) -> tuple[bool, float]:
    """By validation loss; those without one last."""
    loss = row.loss
    return (loss is None, math.inf if loss is None or math.isnan(loss) else loss)


def _setting_key(settings: Mapping[str, Any]) -> str:
    """The same for trials that differ in their seed only."""
    return json.dumps(
        {key: value for key, value in settings.items() if key != "seed"}, sort_keys=True
    )


def scheme_of(balancer: str, looks_ahead: bool) -> tuple[str, str]:
    """Name and label: the paper's, where it has one."""
    for scheme in SCHEMES:
        if (scheme.balancer, scheme.looks_ahead) == (balancer, looks_ahead):
            return scheme.name, scheme.label
    ahead = ("_ahead", ", look-ahead") if looks_ahead else ("", "")
    return balancer + ahead[0], balancer + ahead[1]
