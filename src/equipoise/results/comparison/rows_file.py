"""rows_file: everything that tables and page need of a comparison, in one JSON file without
checkpoints or run folders.

    {"format": "equipoise comparison rows", "version": 1, "title": ...,
     "manifest": ...,                                    as in manifest.json
     "finished": "2026-11-18",                           when the last run had finished
     "runs": [
        {"name": "deepseek-0", "scheme": "deepseek", "seed": 0,
         "result": ..., "measured": ...,                 as in result.json and measured.json
         "validation": [{"step": ..., "loss": ...}, ...],          every evaluation
         "training": {"step": [...], "imbalance": [...], ...},     at most 300 points
         "figures": {"scores": ..., "shifts": ..., "loads": ...}}, of a scheme's first finished seed
        {"name": ..., "scheme": ..., "seed": ..., "error": "why it has not finished"}]}

A folder is gathered into the same structure before anything is drawn, so a page does not depend on
which of both it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from equipoise.results.comparison.condense import (
    CURVES,
    Curves,
    KeptFigures,
    condense_curves,
    condense_histograms,
    condense_trace,
    round_figure,
)
from equipoise.results.run import (
    LOGGED_LEVELS,
    METRICS_FILE,
    RESULT_FILE,
    Measured,
    RunResult,
    is_finished,
    load_failure,
    load_measured,
    load_result,
    read_metrics,
)
from equipoise.storage.atomic import write_text
from equipoise.storage.json_files import read_json, read_json_object

ROWS_FORMAT, ROWS_VERSION = "equipoise comparison rows", 1
ROWS_FILE = "rows.json"
COMPARISON_FORMAT = "equipoise comparison"
"""of its manifest"""
COMPARISON_MANIFEST = "manifest.json"
COMPARISON_TABLE = "table.json"
EVALUATED_KEYS = ("loss", *LOGGED_LEVELS, "imbalance_error", "floor", "sequences")


class PaperFigures(TypedDict):
    """What the paper reports of a scheme, where it does."""

    update_rate: float | None
    validation_loss: float | None
    imbalance: float | None


class SchemeAbout(TypedDict):
    name: str
    label: str
    balancer: NotRequired[str]
    update_rate: float | None
    paper: PaperFigures


class ComparisonManifest(TypedDict):
    """manifest.json of a comparison's folder."""

    format: NotRequired[str]
    version: NotRequired[int]
    preset: str
    steps: int
    seeds: list[int]
    schemes: list[SchemeAbout]
    runs: dict[str, str]
    """name -> folder, below the comparison's"""


class KeptRun(TypedDict):
    """A run: finished if it has a `result`, else with an `error`."""

    name: str
    scheme: str
    seed: int
    error: NotRequired[str]
    result: NotRequired[RunResult]
    measured: NotRequired[Measured]
    validation: NotRequired[list[dict[str, float | None]]]
    training: NotRequired[Curves]
    figures: NotRequired[KeptFigures]


class KeptComparison(TypedDict):
    format: str
    version: int
    title: str
    manifest: ComparisonManifest
    finished: NotRequired[str]
    """the day on which the last run had finished, in UTC; files of earlier versions have none"""
    runs: list[KeptRun]


def load_kept(path: Path) -> KeptComparison:
    """From a rows.json, or from the folder of a comparison that has finished, or of a training."""
    if path.is_file():
        return read_rows(path)
    if (path / COMPARISON_MANIFEST).exists() and not (path / COMPARISON_TABLE).exists():
        raise ValueError(
            f"{path} is not finished: run the same `equipoise compare` again to continue"
        )
    return gather_rows(path)


def gather_rows(folder: Path) -> KeptComparison:
    """From the folder of a comparison (manifest.json) or of a single training (result.json).
    Nothing is written or run.
    """
    if (folder / COMPARISON_MANIFEST).exists():
        return _gather_runs(folder, load_comparison_manifest(folder))
    if is_finished(folder):
        return _gather_runs(folder, _manifest_of_one(load_result(folder)))
    raise ValueError(
        f"{folder} holds no results: neither a manifest.json, as `equipoise compare` writes it, "
        "nor the result.json of a finished training"
    )


def load_comparison_manifest(folder: Path) -> ComparisonManifest:
    """manifest.json of a comparison's folder, checked to have what tables look up."""
    path = folder / COMPARISON_MANIFEST
    keys = ("preset", "steps", "seeds", "schemes", "runs")
    found = read_json_object(path, keys=keys, remedy="the same `equipoise compare` writes it anew")
    try:
        _check_manifest(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None
    return cast(ComparisonManifest, found)


def write_rows(kept: KeptComparison, path: Path) -> Path:
    write_text(path, json.dumps(kept, separators=(",", ":")) + "\n")
    return path


def read_rows(path: Path) -> KeptComparison:
    """A file that `write_rows` wrote. Anything else is refused, by name and with the reason."""
    kept = read_json(path)
    if not isinstance(kept, dict) or kept.get("format") != ROWS_FORMAT:
        found = kept.get("format") if isinstance(kept, dict) else None
        raise ValueError(
            f"{path} is not a {ROWS_FILE} of `equipoise compare`: its format is {found!r}, not "
            f"{ROWS_FORMAT!r}"
        )
    if kept.get("version") != ROWS_VERSION:
        raise ValueError(
            f"{path} has version {kept.get('version')!r} of its format; this equipoise reads "
            f"{ROWS_VERSION}"
        )
    try:
        _check_kept(kept)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None
    return cast(KeptComparison, kept)


def _gather_runs(folder: Path, about: ComparisonManifest) -> KeptComparison:
    runs: list[KeptRun] = []
    for scheme in about["schemes"]:
        for seed in about["seeds"]:
            name = f"{scheme['name']}-{seed}"
            if name not in about["runs"]:
                continue
            first = not any(run["scheme"] == scheme["name"] and "result" in run for run in runs)
            run: KeptRun = {"name": name, "scheme": scheme["name"], "seed": seed}
            runs.append(_gather_run(run, folder / about["runs"][name], with_figures=first))
    kept: KeptComparison = {
        "format": ROWS_FORMAT,
        "version": ROWS_VERSION,
        "title": folder.resolve().name,
        "manifest": about,
        "runs": runs,
    }
    finished = _day_finished([folder / path for path in about["runs"].values()])
    return {**kept, "finished": finished} if finished else kept


def _day_finished(folders: Iterable[Path]) -> str | None:
    """From the files' times: a run does not write its date."""
    times = [(run / RESULT_FILE).stat().st_mtime for run in folders if is_finished(run)]
    return f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d}" if times else None


def _gather_run(run: KeptRun, folder: Path, *, with_figures: bool) -> KeptRun:
    if not is_finished(folder):
        return {**run, "error": load_failure(folder) or "not finished"}
    metrics = list(read_metrics(folder / METRICS_FILE))
    run = {
        **run,
        "result": load_result(folder),
        "measured": load_measured(folder),
        "validation": [_evaluation(row) for row in metrics if row["kind"] == "validation"],
        "training": condense_curves([row for row in metrics if row["kind"] == "train"]),
    }
    if with_figures:
        run["figures"] = {**condense_histograms(folder), **condense_trace(folder / "trace")}
    return run


def _evaluation(row: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        "step": row["step"],
        **{name: round_figure(row[name]) for name in EVALUATED_KEYS if name in row},
    }


def _manifest_of_one(result: RunResult) -> ComparisonManifest:
    """A manifest for a single training."""
    scheme: SchemeAbout = {
        "name": result["balancer"],
        "label": result["balancer"],
        "balancer": result["balancer"],
        "paper": {"update_rate": None, "validation_loss": None, "imbalance": None},
        "update_rate": result["update_rate"],
    }
    return {
        "preset": result["preset"],
        "steps": result["steps"],
        "seeds": [result["seed"]],
        "schemes": [scheme],
        "runs": {f"{result['balancer']}-{result['seed']}": "."},
    }


def _check_kept(kept: Any) -> None:
    """That everything is there which tables and page look up."""
    about = kept["manifest"]
    wanted = {"title": str(kept["title"]), "preset": about["preset"], "steps": int(about["steps"])}
    schemes = {
        each["name"]: (each["label"], each["update_rate"], each["paper"]["imbalance"])
        for each in about["schemes"]
    }
    for run in kept["runs"]:
        if run["scheme"] not in schemes:
            raise ValueError(
                f"a run of {run['scheme']!r}, which is not among the schemes ({wanted['title']})"
            )
        if "result" in run:
            _check_run(run)
        else:
            str(run["error"])


def _check_manifest(about: Any) -> None:
    for scheme in about["schemes"]:
        scheme["name"], scheme["label"], scheme["update_rate"], scheme["paper"]["imbalance"]
    for name, place in about["runs"].items():
        if not isinstance(place, str):
            raise TypeError(f"the folder of {name} is {place!r}")
    iter(about["seeds"])


def _check_run(run: Any) -> None:
    (
        run["seed"],
        run["measured"].get("verdicts"),
        run["result"]["validation_loss"],
        run["result"]["imbalance"],
    )
    if len({len(run["training"][name]) for name in ("step", *CURVES)}) > 1:
        raise ValueError(f"the curves of {run['name']} differ in length")
    for row in run["validation"]:
        row["step"], row["loss"], row["imbalance"]
    for layer in run.get("figures", {}).get("loads", []):
        rows = [*layer["z"], *layer.get("shift", [])]
        if any(len(row) != len(layer["steps"]) for row in rows):
            raise ValueError(f"a load map of {run['name']} has not as many columns as steps")
    for name in ("scores", "shifts"):
        for frame in run.get("figures", {}).get(name, {}).get("frames", []):
            if len(frame["y"]) != len(run["figures"][name]["x"]):
                raise ValueError(f"a histogram of {run['name']} has not as many values as bins")
