"""keep: everything that tables and page need of a comparison, in one JSON file without checkpoints
or run folders.

    {"format": "equipoise comparison rows", "version": 1, "title": ..., "manifest": ...,     as in manifest.json
     "runs": [{"name": "deepseek-0", "scheme": "deepseek", "seed": 0,
               "result": ..., "measured": ...,                    as in the run's result.json and measured.json
               "validation": [{"step": ..., "loss": ...}, ...],   every evaluation
               "training": {"step": [...], "imbalance": [...], "idle_share": [...], "loss": [...]},       at most 300 points
               "figures": {"scores": ..., "shifts": ..., "loads": ...}},     of each scheme's first finished seed (thin.py)
              {"name": ..., "scheme": ..., "seed": ..., "error": "why it has not finished"}]}

A folder is gathered into the same structure before anything is drawn, so a page does not depend on
which of both it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.results.comparison import thin
from equipoise.results.run import read_metrics
from equipoise.storage.atomic import write_text

FORMAT, VERSION = "equipoise comparison rows", 1
FILE = "rows.json"
EVALUATED = ("loss", "imbalance", "max_violation", "imbalance_error", "floor", "sequences")
Kept = dict[str, Any]


def gather(folder: Path) -> Kept:
    """From the folder of a comparison (manifest.json) or of a single training (result.json).
    Nothing is written or run.
    """
    if (folder / "manifest.json").exists():
        return _kept(folder, _json(folder / "manifest.json"))
    if (folder / "result.json").exists():
        return _kept(folder, _alone(folder))
    raise ValueError(
        f"{folder} holds no results: neither a manifest.json, as `equipoise compare` writes it, "
        "nor the result.json of a "
        "finished training"
    )


def write(kept: Kept, path: Path) -> Path:
    write_text(path, json.dumps(kept, separators=(",", ":")) + "\n")
    return path


def read(path: Path) -> Kept:
    """A file that `write` wrote. Anything else is refused, by name and with the reason."""
    try:
        kept = _json(path)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: it is not JSON, or damaged ({error})") from None
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        found = kept.get("format") if isinstance(kept, dict) else None
        raise ValueError(
            f"{path} is not a {FILE} of `equipoise compare`: its format is {found!r}, not "
            f"{FORMAT!r}"
        )
    if kept.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {kept.get('version')!r} of its format; this equipoise reads "
            f"{VERSION}"
        )
    try:
        _check(kept)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from None
    return kept


def _kept(folder: Path, about: dict[str, Any]) -> Kept:
    runs: list[dict[str, Any]] = []
    for scheme in about["schemes"]:
        for seed in about["seeds"]:
            name = f"{scheme['name']}-{seed}"
            if name in about["runs"]:
                first = not any(run["scheme"] == scheme["name"] and "result" in run for run in runs)
                runs.append(
                    {
                        "name": name,
                        "scheme": scheme["name"],
                        "seed": seed,
                        **_run(folder / about["runs"][name], first),
                    }
                )
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": folder.resolve().name,
        "manifest": about,
        "runs": runs,
    }


def _run(folder: Path, with_figures: bool) -> dict[str, Any]:
    if not (folder / "result.json").exists():
        failed = folder / "failure.json"
        return {"error": _json(failed)["error"] if failed.exists() else "not finished"}
    measured = _json(folder / "measured.json") if (folder / "measured.json").exists() else {}
    metrics = list(read_metrics(folder / "metrics.jsonl"))
    run = {
        "result": _json(folder / "result.json"),
        "measured": measured,
        "validation": [_evaluation(row) for row in metrics if row["kind"] == "validation"],
        "training": thin.curves([row for row in metrics if row["kind"] == "train"]),
    }
    if with_figures:
        run["figures"] = {**thin.histograms(folder), "loads": thin.loads(folder)}
    return run


def _evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": row["step"],
        **{name: thin.short(row[name]) for name in EVALUATED if name in row},
    }


def _alone(folder: Path) -> dict[str, Any]:
    """A manifest for a single training."""
    result = _json(folder / "result.json")
    paper = dict.fromkeys(("update_rate", "validation_loss", "imbalance"))
    scheme = {
        "name": result["balancer"],
        "label": result["balancer"],
        "balancer": result["balancer"],
        "paper": paper,
    }
    return {
        "preset": result["preset"],
        "steps": result["steps"],
        "seeds": [result["seed"]],
        "schemes": [{**scheme, "update_rate": result["update_rate"]}],
        "runs": {f"{result['balancer']}-{result['seed']}": "."},
    }


def _check(kept: Kept) -> None:
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


def _check_run(run: dict[str, Any]) -> None:
    (
        run["seed"],
        run["measured"].get("verdicts"),
        run["result"]["validation_loss"],
        run["result"]["imbalance"],
    )
    if len({len(run["training"][name]) for name in ("step", *thin.CURVES)}) > 1:
        raise ValueError(f"the curves of {run['name']} differ in length")
    for row in run["validation"]:
        row["step"], row["loss"], row["imbalance"]
    for name in ("scores", "shifts"):
        for frame in run.get("figures", {}).get(name, {}).get("frames", []):
            if len(frame["y"]) != len(run["figures"][name]["x"]):
                raise ValueError(f"a histogram of {run['name']} has not as many values as bins")


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
