"""Trace: what happened to the shifts and loads of a training, step by step, in files that survive a
crash.

    with TraceWriter("run/trace", top_k=6, layers=10, about={"gate": "sigmoid", "balancer":
        "deepseek"}) as writer: writer.append(step, layer, shift=..., shift_after=..., loads=...,
        step_size=..., unit="counts", scores=sample)

    trace = Trace.open("run/trace")
    trace.record(layer=3, step=trace.steps(layer=3)[-1]).loads

A record says: `shift` was added to the scores, `loads` came of it, and the update left
`shift_after`, where

    shift_after = shift + step_size * gap,    gap = target load - loads, in `unit` (counts; tokens: / T; relative: / target).

`scores` are some of the batch's rows, or all of them (`whole=True`): the statements about fixed
scores need all.

Layout, version 1. `trace.json` has format, version, top_k, layers, target and about. Each layer has
a folder, `000` and so on:

    000000000-000000127.npz   a chunk, named by its first and last step: step (R), shift, shift_after, loads, step_size (R, E),
                              unit (R), whole (R), rows (R), and scores (sum of rows, E): the samples one below the other
    000000128-000000128.npz   a record not yet folded: a chunk of one
    000000100.whole.npz       scores (T, E) of a whole batch, kept apart so that nothing loads them by accident

A record is written at once to a file of its own; when there are 128 they are folded into one chunk.
So 10,000 steps of 10 layers are 790 chunks and at most 1,280 small files. Every file is written
under another name and renamed when complete: a process killed at any moment leaves a readable trace
with all appended records. (A power failure may lose some: only chunks are synced.) Nothing is
pickled, neither writing nor reading.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.storage.atomic import replace_file

FORMAT, VERSION = "equipoise trace", 1
UNITS = ("counts", "tokens", "relative")
CHUNK = 128
COLUMNS = ("step", "shift", "shift_after", "loads", "step_size", "unit", "whole", "rows", "scores")

Columns = dict[str, NDArray[Any]]


class TraceError(ValueError):
    """A trace that cannot be read or continued, and why."""


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


class Trace:
    """A trace to read. Opening reads trace.json only; records are loaded when asked for, a chunk at
    a time.

    A trace that is being written can be read meanwhile: `steps` looks at the folder anew each time.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.folder = folder
        self.top_k: int = header["top_k"]
        self.layers: tuple[str, ...] = tuple(header["layers"])
        self.target: tuple[float, ...] | None = header["target"] and tuple(header["target"])
        self.about: dict[str, Any] = header["about"]
        self._homes: dict[int, dict[int, Path]] = {}
        self._loaded: tuple[Path, Columns] | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open a trace written by TraceWriter."""
        return cls(Path(folder), _header(Path(folder)))

    def index(self, layer: int | str) -> int:
        """A layer's index from its index or its name."""
        if layer in self.layers:
            return self.layers.index(str(layer))
        if isinstance(layer, int) and 0 <= layer < len(self.layers):
            return layer
        raise TraceError(
            f"{self.folder} has no layer {layer!r}; its layers are {', '.join(self.layers)}"
        )

    def steps(self, layer: int | str) -> list[int]:
        """The steps recorded of a layer, in order."""
        index = self.index(layer)
        homes: dict[int, Path] = {}
        for path in _chunks(self.folder / f"{index:03}"):
            first, last = _span(path)
            homes |= dict.fromkeys([first] if first == last else _load(path)["step"].tolist(), path)
        self._homes[index] = homes
        return sorted(homes)

    def whole_steps(self, layer: int | str) -> list[int]:
        """The steps of which all scores were kept."""
        whole = {
            _step(path)
            for path in (self.folder / f"{self.index(layer):03}").glob("?????????.whole.npz")
        }
        return [step for step in self.steps(layer) if step in whole]

    def record(self, layer: int | str, step: int) -> Record:
        """One step of one layer, with its scores."""
        index = self.index(layer)
        if step not in self._homes.get(index, ()) or not self._homes[index][step].exists():
            self.steps(layer)  # what was a record of its own may lie in a chunk by now
        if step not in self._homes[index]:
            raise TraceError(f"{self.folder} has no step {step} of layer {layer!r}")
        columns = self._columns(self._homes[index][step])
        record = _unstacked(columns, int(np.flatnonzero(columns["step"] == step)[0]))
        if not record.whole:
            return record
        scores = _load(self.folder / f"{index:03}" / f"{step:09}.whole.npz", ("scores",))["scores"]
        return Record(**{**vars(record), "scores": scores})

    def _columns(self, path: Path) -> Columns:
        if self._loaded is None or self._loaded[0] != path:
            self._loaded = path, _load(path)
        return self._loaded[1]


class TraceWriter:
    """Appends records to a new trace; `TraceWriter.resume` goes on with one.

    Args:
        folder: where to; made if it is not there. A folder that already holds a trace is refused.
        top_k: experts each token takes.
        layers: how many, or their names.
        about: anything JSON can hold: gate, balancer, seed, ...
        target: weights of the experts' target loads, if they are not equal.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        top_k: int,
        layers: int | Sequence[str],
        about: Mapping[str, Any] | None = None,
        target: Sequence[float] | None = None,
    ) -> None:
        folder = Path(folder)
        if (folder / "trace.json").exists():
            raise TraceError(
                f"{folder} already holds a trace: continue it by TraceWriter.resume, or take "
                "another folder"
            )
        names = [str(layer) for layer in (range(layers) if isinstance(layers, int) else layers)]
        if len(set(names)) < len(names) or not names:
            raise TraceError(
                f"a trace needs at least one layer, and names that differ, not {names}"
            )
        header = {"format": FORMAT, "version": VERSION, "top_k": int(top_k), "layers": names}
        header |= {
            "target": None if target is None else [float(weight) for weight in target],
            "about": dict(about or {}),
        }
        text = json.dumps(header, indent=2)
        for index in range(len(names)):
            (folder / f"{index:03}").mkdir(parents=True, exist_ok=True)
        _write(folder / "trace.json", lambda file: file.write(text.encode()))
        self._take_up(folder)

    @classmethod
    def resume(cls, folder: str | os.PathLike[str], *, after: int) -> Self:
        """Go on with a trace: forget every record of a step later than `after`, and append from
        there.
        """
        trace = Trace.open(folder)
        for index in range(len(trace.layers)):
            _truncate(trace.folder / f"{index:03}", after)
        writer = cls.__new__(cls)
        writer._take_up(trace.folder)
        return writer

    def append(
        self,
        step: int,
        layer: int | str,
        *,
        shift: ArrayLike,
        shift_after: ArrayLike,
        loads: ArrayLike,
        step_size: ArrayLike | None = None,
        unit: str = "counts",
        scores: ArrayLike | None = None,
        whole: bool = False,
    ) -> None:
        """Add one step of one layer. When this returns, the record is in a file.

        Args:
            step: number of the update; within a layer steps grow.
            layer: index or name.
            shift, shift_after: (E) before and after the update.
            loads: (E) what the update was made from.
            step_size: one number or (E), as in shift_after = shift + step_size * gap; None where
                the rule has none.
            unit: of the gap that step_size multiplies.
            scores: (n, E) unshifted: a sample, or with `whole` every row the loads were counted
                from.
        """
        index = self.trace.index(layer)
        columns = _columns(step, shift, shift_after, loads, step_size, unit, scores, whole)
        counted, tokens = columns["loads"].sum(), len(columns["scores"])
        if whole and tokens * self.trace.top_k != counted:
            raise TraceError(
                f"the loads of step {step}, layer {layer!r}, count {counted} choices, but "
                f"{tokens} tokens make "
                f"{tokens * self.trace.top_k}: whole=True takes all rows the loads were counted "
                "from"
            )
        if step <= self._last[index]:
            raise TraceError(
                f"layer {layer!r} already has step {self._last[index]}, so step {step} cannot "
                "follow. To go back, "
                "resume(after=...)"
            )
        folder = self.trace.folder / f"{index:03}"
        if whole:  # before its record, so that no record is ever without its scores
            _save(folder / f"{step:09}.whole.npz", {"scores": columns["scores"]})
            columns |= {"scores": columns["scores"][:0], "rows": np.zeros(1, np.int64)}
        _save(folder / f"{step:09}-{step:09}.npz", columns)
        self._last[index], self._loose[index] = step, self._loose[index] + 1
        if self._loose[index] >= CHUNK:
            self._fold(index)

    def close(self) -> None:
        """Fold what is left into chunks. Forgetting to call it loses nothing."""
        for index, loose in enumerate(self._loose):
            if loose > 1:
                self._fold(index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_up(self, folder: Path) -> None:
        self.trace = Trace.open(folder)
        spans = [
            [_span(path) for path in _chunks(folder / f"{index:03}")]
            for index in range(len(self.trace.layers))
        ]
        self._last = [max((last for _, last in each), default=-1) for each in spans]
        self._loose = [sum(first == last for first, last in each) for each in spans]

    def _fold(self, index: int) -> None:
        """Many records into one chunk. If we are killed halfway a record is there twice, which
        reading allows for.
        """
        folder = self.trace.folder / f"{index:03}"
        loose = [path for path in _chunks(folder) if len(set(_span(path))) == 1]
        _save_chunk(folder, [_load(path) for path in loose])
        for path in loose:
            path.unlink()
        self._loose[index] = 0


def _columns(
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
    if unit not in UNITS:
        raise TraceError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
    if not 0 <= step < 10**9:
        raise TraceError(f"step must be in [0, 10^9), not {step}")
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
    kept = np.zeros((0, E), np.float32) if scores is None else np.asarray(scores)
    if kept.ndim != 2 or kept.shape[1] != E or kept.dtype.kind != "f":
        raise TraceError(
            f"scores must be floats of shape (n, {E}), not {kept.dtype} of shape {kept.shape}"
        )
    if whole and scores is None:
        raise TraceError("whole=True needs the scores")
    columns["loads"] = columns["loads"].astype(np.int64)
    columns |= {
        "step": np.asarray(step),
        "unit": np.asarray(unit),
        "whole": np.asarray(whole),
        "rows": np.asarray(len(kept)),
    }
    return {name: array[None] for name, array in columns.items()} | {"scores": kept}


def _unstacked(columns: Columns, row: int) -> Record:
    end = int(columns["rows"][: row + 1].sum())
    return Record(
        step=int(columns["step"][row]),
        shift=columns["shift"][row],
        shift_after=columns["shift_after"][row],
        loads=columns["loads"][row],
        step_size=columns["step_size"][row],
        unit=str(columns["unit"][row]),
        scores=columns["scores"][end - int(columns["rows"][row]) : end],
        whole=bool(columns["whole"][row]),
    )


def _truncate(folder: Path, after: int) -> None:
    """Forget the records of later steps."""
    for path in _chunks(folder):
        first, last = _span(path)
        if first <= after < last:
            columns = _load(path)
            keep = columns["step"] <= after
            kept = {name: array[keep] for name, array in columns.items() if name != "scores"}
            _save_chunk(
                folder, [kept | {"scores": columns["scores"][np.repeat(keep, columns["rows"])]}]
            )
        if last > after:
            path.unlink()
    for path in folder.glob("?????????.whole.npz"):
        if _step(path) > after:
            path.unlink()


def _save_chunk(folder: Path, parts: list[Columns]) -> None:
    columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
    _save(folder / f"{columns['step'][0]:09}-{columns['step'][-1]:09}.npz", columns, sync=True)


def _chunks(folder: Path) -> list[Path]:
    return sorted(folder.glob("?????????-?????????.npz"))


def _span(path: Path) -> tuple[int, int]:
    first, last = path.stem.split("-")
    return int(first), int(last)


def _step(path: Path) -> int:
    return int(path.name.split(".")[0])


def _header(folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    try:
        header = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise TraceError(f"{folder} is not a trace: there is no trace.json in it") from None
    except ValueError:
        raise TraceError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise TraceError(f"{path} is not of an equipoise trace: its format is not {FORMAT!r}")
    if header.get("version") != VERSION:
        raise TraceError(
            f"{folder} has version {header.get('version')} of the layout, and this equipoise "
            f"reads {VERSION}: use a newer "
            "equipoise"
        )
    missing = {"top_k", "layers", "target", "about"} - header.keys()
    if missing:
        raise TraceError(f"{path} lacks {', '.join(sorted(missing))}")
    return header


def _load(path: Path, names: Sequence[str] = COLUMNS) -> Columns:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        KeyError,
        ValueError,
        AttributeError,
    ) as error:
        raise TraceError(f"{path} is truncated or is not of an equipoise trace: {error}") from error


def _save(path: Path, columns: Columns, sync: bool = False) -> None:
    # savez's stub takes keywords it has itself, so mypy cannot see that ours are only arrays
    _write(path, lambda file: np.savez(file, **columns), sync)  # type: ignore[arg-type]


def _write(path: Path, fill: Callable[[IO[bytes]], object], sync: bool = False) -> None:
    with replace_file(path, fsync=sync) as unfinished, unfinished.open("wb") as file:
        fill(file)
