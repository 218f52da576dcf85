"""A record: one step of one layer, as a reader sees it and as the columns it is stored in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.trace.error import TraceError
from equipoise.trace.layout import MOST_STEPS

STEP_SIZE_UNITS = ("counts", "tokens", "relative")
"""of the gap that a step size multiplies"""
COLUMNS_WITHOUT_SCORES = (
    "step", "shift", "shift_after", "loads", "step_size", "unit", "whole", "rows"
)  # fmt: skip
RECORD_COLUMNS = (*COLUMNS_WITHOUT_SCORES, "scores")

Columns = dict[str, NDArray[Any]]
"""The arrays of a chunk of R records, by name: shapes are in layout.py."""
_COLUMN_DIMENSIONS = {
    "step": 1, "shift": 2, "shift_after": 2, "loads": 2, "step_size": 2, "unit": 1, "whole": 1,
    "rows": 1, "scores": 2,
}  # fmt: skip
_COLUMN_KINDS = {
    "step": "iu", "shift": "fiu", "shift_after": "fiu", "loads": "iu", "step_size": "f",
    "unit": "U", "whole": "b", "rows": "iu", "scores": "f",
}  # fmt: skip
"""of numpy's dtypes: i and u are integers, f floats, U text, b bool; never O, which is pickled"""


@dataclass(frozen=True)
class Record:
    """One step of one layer. `scores` has no rows where none were kept; `step_size` is NaN where
    the rule has none.
    """

    step: int
    shift: NDArray[Any]
    shift_after: NDArray[Any]
    loads: NDArray[np.int64]
    step_size: NDArray[np.float64]
    unit: str
    scores: NDArray[Any]
    whole: bool


def columns_of_record(
    step: int,
    shift: ArrayLike,
    shift_after: ArrayLike,
    loads: ArrayLike,
    step_size: ArrayLike | None,
    unit: str,
    scores: ArrayLike | None,
    whole: bool,
) -> Columns:
    """A record as a chunk of one, checked."""
    if unit not in STEP_SIZE_UNITS:
        raise TraceError(f"unit must be one of {', '.join(STEP_SIZE_UNITS)}, not {unit!r}")
    if not 0 <= step < MOST_STEPS:
        raise TraceError(f"step must be in [0, 10^9), not {step}")
    if whole and scores is None:
        raise TraceError("whole=True needs the scores")
    columns = _columns_of_update(shift, shift_after, loads, step_size)
    kept = _checked_scores(scores, columns["shift"].size)
    columns |= {
        "step": np.asarray(step),
        "unit": np.asarray(unit),
        "whole": np.asarray(whole),
        "rows": np.asarray(len(kept)),
    }
    return {name: array[None] for name, array in columns.items()} | {"scores": kept}


def _columns_of_update(
    shift: ArrayLike, shift_after: ArrayLike, loads: ArrayLike, step_size: ArrayLike | None
) -> Columns:
    """The four that have a number for each expert."""
    columns = {
        "shift": np.asarray(shift),
        "shift_after": np.asarray(shift_after),
        "loads": np.asarray(loads),
    }
    E = columns["shift"].size
    columns["step_size"] = np.broadcast_to(
        np.asarray(np.nan if step_size is None else step_size, np.float64), (E,)
    )
    for name, array in columns.items():
        if array.shape != (E,) or array.dtype.kind not in "fiu":
            raise TraceError(
                f"{name} must be {E} numbers like the shift, not {array.dtype} of shape "
                f"{array.shape}"
            )
    if columns["loads"].dtype.kind == "f":
        raise TraceError("loads are counts: give integers")
    columns["loads"] = columns["loads"].astype(np.int64)
    return columns


def _checked_scores(scores: ArrayLike | None, E: int) -> NDArray[Any]:
    kept = np.zeros((0, E), np.float32) if scores is None else np.asarray(scores)
    if kept.ndim != 2 or kept.shape[1] != E or kept.dtype.kind != "f":
        raise TraceError(
            f"scores must be floats of shape (n, {E}), not {kept.dtype} of shape {kept.shape}"
        )
    return kept


def join_columns(parts: list[Columns]) -> Columns:
    """Several chunks as one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in RECORD_COLUMNS}


def cut_columns(columns: Columns, after: int) -> Columns:
    """A chunk without the records of steps later than `after`."""
    keep = columns["step"] <= after
    kept = {name: array[keep] for name, array in columns.items() if name != "scores"}
    return kept | {"scores": columns["scores"][np.repeat(keep, columns["rows"])]}


def record_at(columns: Columns, row: int, scores: NDArray[Any]) -> Record:
    """The record in a row of a chunk, with its scores (n, E)."""
    return Record(
        step=int(columns["step"][row]),
        shift=columns["shift"][row],
        shift_after=columns["shift_after"][row],
        loads=columns["loads"][row],
        step_size=columns["step_size"][row],
        unit=str(columns["unit"][row]),
        scores=scores,
        whole=bool(columns["whole"][row]),
    )


def check_columns(columns: Columns) -> None:
    """Raise ValueError where shapes and types are not those of records: a damaged file, or one that
    somebody else wrote. Some columns may be missing.
    """
    shapes = {name: array.shape for name, array in columns.items()}
    for name, array in columns.items():
        if array.ndim != _COLUMN_DIMENSIONS[name] or array.dtype.kind not in _COLUMN_KINDS[name]:
            raise ValueError(f"its {name} are {array.dtype} of shape {array.shape}")
    if len({shape[0] for name, shape in shapes.items() if name != "scores"}) > 1:
        raise ValueError(f"its columns differ in length: {shapes}")
    if len({shape[1] for shape in shapes.values() if len(shape) == 2}) > 1:
        raise ValueError(f"its columns differ in the number of experts: {shapes}")
    if "rows" in columns and "scores" in columns:
        rows, length = columns["rows"], len(columns["scores"])
        if (rows < 0).any() or rows.sum() != length:
            raise ValueError(f"its records have {rows.sum()} rows of scores, not {length}")
