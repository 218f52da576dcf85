"""run: what one training leaves on disk, as typed rows.

    FOLDER/
        metrics.jsonl    a line for every step and evaluation (StepMetrics, EvaluationMetrics)
        result.json      the figures of the whole run, written when it has finished (RunResult)
        measured.json    what `compare` or `train --measure` measured afterwards (Measured)
        failure.json     instead of result.json, if the run failed under `compare` or `sweep`

Files of earlier versions have fewer keys: what they do not have is None in tables and a gap in
figures.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from equipoise.storage.json_files import read_json_object

RESULT_FILE = "result.json"
MEASURED_FILE = "measured.json"
MEASURED_FORMAT = 2
"""raise it when the same run would give other figures than before"""
METRICS_FILE = "metrics.jsonl"
FAILURE_FILE = "failure.json"


class LoadLevels(TypedDict):
    """How uneven loads are, in those measures of equipoise.routing.metrics that are logged.

    This is the one list of them: a key added here is in metrics.jsonl, in result.json and in
    rows.json; its Column (columns.py) puts it in the tables.
    """

    imbalance: float
    max_violation: float


LOGGED_LEVELS = tuple(LoadLevels.__annotations__)


class LevelSummary(LoadLevels):
    """Means over layers, as the paper reports them, and each layer's own."""

    layers: dict[str, list[float]]
    """key of LoadLevels -> a value for each MoE layer, in the model's order"""


class StepMetrics(LevelSummary):
    """A step of the training, in its own batch."""

    kind: Literal["train"]
    step: int
    loss: float
    penalty: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    tokens_per_second: float
    idle_share: NotRequired[float | None]


class EvaluationMetrics(LevelSummary):
    """An evaluation on the validation set after `step`."""

    kind: Literal["validation"]
    step: int
    loss: float
    imbalance_error: NotRequired[float | None]
    floor: NotRequired[float | None]
    sequences: NotRequired[int]


class RunResult(LevelSummary):
    """result.json: figures, and what the run was. equipoise.results.columns says what each figure
    means.
    """

    validation_loss: float
    imbalance_error: NotRequired[float | None]
    floor: NotRequired[float | None]
    validation_sequences: NotRequired[int | None]
    training_imbalance: NotRequired[float | None]
    training_idle: NotRequired[float | None]
    early_imbalance: NotRequired[float | None]
    early_idle: NotRequired[float | None]
    late_imbalance: NotRequired[float | None]
    late_idle: NotRequired[float | None]
    train_loss: float
    train_imbalance: float
    steps: int
    tokens: int
    seconds: float
    preset: str
    balancer: str
    update_rate: float | None
    balancer_options: dict[str, Any]
    seed: int
    corpus: str
    corpus_digest: str
    parameters: int
    ranks: int
    versions: dict[str, str]


class VerdictRow(TypedDict):
    """A statement of the paper on this run: equipoise.theorems.Verdict as JSON."""

    name: str
    applies: bool
    holds: bool | None
    margin: float | None
    worst_step: int | None
    why: str


class Measured(TypedDict, total=False):
    """measured.json. Format 1 had another `given_up`; settled figures are there on request only."""

    format: int
    batches: int
    devices: int
    given_up: float
    dual_gap: float
    batch_imbalance: float
    idle_share: float | None
    shift_mean: float
    shift_diameter: float
    score_spread_first: float
    score_spread_last: float
    settled_loss: float
    settled_imbalance: float
    verdicts: list[VerdictRow]


def pick_levels(measured: Mapping[str, Any]) -> LoadLevels:
    """Those of `equipoise.routing.metrics`, or of a row, that are logged."""
    return cast(LoadLevels, {name: float(measured[name]) for name in LOGGED_LEVELS})


def summarise_levels(layers: Sequence[LoadLevels]) -> LevelSummary:
    """From the levels of each MoE layer. A model without such layers has levels of 0."""
    each = {name: [float(layer[name]) for layer in layers] for name in LOGGED_LEVELS}  # type: ignore[literal-required]
    means = {name: sum(values) / max(1, len(layers)) for name, values in each.items()}
    return {**pick_levels(means), "layers": each}


RESULT_KEYS = (
    "validation_loss", "imbalance", "steps", "preset", "balancer", "update_rate", "seed"
)  # fmt: skip
"""what every result.json has, however old"""
_REMEDY = "restore it from a copy, or delete the run's folder and train again"


def load_json(path: Path) -> Any:
    """The object a JSON file of results holds; any other content is refused, by the file's name."""
    return read_json_object(path)


def is_finished(folder: Path) -> bool:
    return (folder / RESULT_FILE).exists()


def load_result(folder: Path) -> RunResult:
    found = read_json_object(folder / RESULT_FILE, keys=RESULT_KEYS, remedy=_REMEDY)
    return cast(RunResult, found)


def load_measured(folder: Path) -> Measured:
    """Empty where nothing has been measured."""
    path = folder / MEASURED_FILE
    return cast(Measured, load_json(path)) if path.exists() else {}


def load_failure(folder: Path) -> str | None:
    """Why the run failed, if it did."""
    path = folder / FAILURE_FILE
    if not path.exists():
        return None
    remedy = "delete it, and the run is tried again"
    return str(read_json_object(path, keys=("error",), remedy=remedy)["error"])


def read_metrics(path: Path) -> Iterator[StepMetrics | EvaluationMetrics]:
    """The rows of metrics.jsonl; a last line that was cut off by a crash is left out. A damaged
    line between others is left out with a warning.
    """
    damaged: list[int] = []
    for number, row in scan_metrics(path):
        if row is None:
            damaged.append(number)
            continue
        for line in damaged:
            warnings.warn(f"{path}, line {line} is damaged and is left out", stacklevel=2)
        damaged.clear()
        yield row


def scan_metrics(path: Path) -> Iterator[tuple[int, StepMetrics | EvaluationMetrics | None]]:
    """The number of every line of metrics.jsonl, the first being 1, and its row; None for a line
    that is not one.
    """
    if not path.exists() or not path.stat().st_size:
        return
    lines = path.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        yield number, parse_metrics(line)


def parse_metrics(line: str) -> StepMetrics | EvaluationMetrics | None:
    """The row in a line of metrics.jsonl; None for a line that is not one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and isinstance(row.get("step"), int) and "kind" in row
    # a byte that is not UTF-8 was replaced by this character
    return row if whole and "\ufffd" not in line else None
