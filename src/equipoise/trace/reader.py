"""Trace: the one reader of traces. Nobody else opens their files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from equipoise.trace.chunks import load_columns, map_scores
from equipoise.trace.error import TraceError
from equipoise.trace.header import TraceAbout, TraceHeader
from equipoise.trace.layout import (
    chunk_paths,
    first_and_last,
    header_path,
    is_trace,
    layer_folder,
    whole_path,
    whole_paths,
)
from equipoise.trace.record import COLUMNS_WITHOUT_SCORES, Columns, Record, record_at


class Trace:
    """A trace to read. Opening reads trace.json only; records are loaded when asked for, a chunk at
    a time.

    A trace that is being written can be read meanwhile: `steps` looks at the folder anew each time.

    Example:
        >>> trace = equipoise.Trace.open("runs/a/trace")  # doctest: +SKIP
        >>> trace.loads(trace.layers[0], trace.steps[-1])  # doctest: +SKIP
    """

    def __init__(self, folder: Path, header: TraceHeader) -> None:
        self.folder = folder
        self.header = header
        self.top_k = header.top_k
        self.layers = header.layers
        self.target = header.target
        self.about = dict(header.about)
        self._chunk_of: dict[int, dict[int, Path]] = {}
        self._experts: dict[int, int] = {}
        self._loaded: tuple[Path, Columns] | None = None
        self._samples: tuple[Path, NDArray[Any]] | None = None

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open a trace written by TraceWriter: its folder, or that of the training it is of."""
        folder = Path(folder)
        if not is_trace(folder) and is_trace(folder / "trace"):
            folder = folder / "trace"
        return cls(folder, TraceHeader.load(folder))

    @property
    def groups(self) -> tuple[int, int] | None:
        """(number, keep) where a token may use only its best groups of experts."""
        return TraceAbout.from_json(self.about).groups

    @property
    def sequence_length(self) -> int | None:
        """Tokens in a sequence; None where the trace does not say."""
        return TraceAbout.from_json(self.about).sequence_length

    @property
    def header_text(self) -> str:
        """trace.json as it is: two traces whose texts differ are not of the same origin."""
        return header_path(self.folder).read_text(encoding="utf-8")

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
        chunk_of: dict[int, Path] = {}
        for path in chunk_paths(layer_folder(self.folder, index)):
            first, last = first_and_last(path)
            steps = [first] if first == last else load_columns(path, ("step",))["step"].tolist()
            chunk_of |= dict.fromkeys(steps, path)
        self._chunk_of[index] = chunk_of
        return sorted(chunk_of)

    def whole_steps(self, layer: int | str) -> list[int]:
        """The steps of which all scores were kept."""
        whole = whole_paths(layer_folder(self.folder, self.index(layer)))
        return [step for step in self.steps(layer) if step in whole]

    def sampled_steps(self, layer: int | str) -> list[int]:
        """The steps of which the scores of some tokens were kept, in the chunks."""
        index, steps = self.index(layer), self.steps(layer)
        return [step for step in steps if self._place(index, step).rows]

    def record(self, layer: int | str, step: int) -> Record:
        """One step of one layer, with its scores, in memory."""
        place = self._place(self.index(layer), step)
        if place.whole is None:
            scores = self._sampled_scores(place.chunk)[place.score_rows]
        else:
            scores = load_columns(place.whole, ("scores",))["scores"]
        place.check_scores(scores, self.top_k)
        return record_at(place.columns, place.row, scores)

    def updates(self, layer: int | str) -> Iterator[Record]:
        """All records of a layer in order, without their scores."""
        index = self.index(layer)
        for step in self.steps(layer):
            place = self._place(index, step)
            nothing = np.zeros((0, place.columns["loads"].shape[1]), np.float32)
            yield record_at(place.columns, place.row, nothing)

    def loads(self, layer: int | str, step: int) -> NDArray[np.int64]:
        """(E): the loads of one step of one layer, without reading its scores."""
        place = self._place(self.index(layer), step)
        return place.columns["loads"][place.row]

    def scores(self, layer: int | str, step: int) -> NDArray[Any]:
        """(n, E): the scores of one step of one layer, the whole batch or a sample, as a map of the
        file: a batch may be larger than memory. What is written to the array stays in it.
        """
        place = self._place(self.index(layer), step)
        scores = map_scores(place.whole or place.chunk)[place.score_rows]
        place.check_scores(scores, self.top_k)
        return scores

    def _place(self, index: int, step: int) -> _Place:
        """Where a step of a layer is."""
        chunk = self._chunk_of.get(index, {}).get(step)
        if chunk is None or not chunk.exists():
            # what was a record of its own may be in a chunk of many by now
            self.steps(index)
            chunk = self._chunk_of[index].get(step)
        if chunk is None:
            raise TraceError(f"{self.folder} has no step {step} of layer {self.layers[index]!r}")
        columns = self._columns(chunk)
        self._check_experts(index, chunk, columns)
        found = np.flatnonzero(columns["step"] == step)
        if not found.size:
            raise TraceError(f"{chunk} is damaged: it does not hold step {step}")
        row = int(found[0])
        whole = whole_path(chunk.parent, step) if columns["whole"][row] else None
        return _Place(chunk, columns, row, whole)

    def _check_experts(self, index: int, chunk: Path, columns: Columns) -> None:
        """All records of a layer have the experts of its first, or of the header's target."""
        first = min(self._chunk_of[index].items())[1]
        experts, wanted = columns["loads"].shape[1], len(self.target or ())
        if not wanted:
            wanted = self._experts.setdefault(
                index, load_columns(first, ("loads",))["loads"].shape[1]
            )
        if experts != wanted:
            raise TraceError(
                f"{chunk} is not of this trace: it has {experts} experts, the "
                f"{'target of its header' if self.target else f'first record, in {first},'} has "
                f"{wanted}"
            )

    def _columns(self, chunk: Path) -> Columns:
        """All but the scores. The last chunk is kept, since records are mostly read in order."""
        if self._loaded is None or self._loaded[0] != chunk:
            self._loaded = chunk, load_columns(chunk, COLUMNS_WITHOUT_SCORES)
        return self._loaded[1]

    def _sampled_scores(self, chunk: Path) -> NDArray[Any]:
        """(n, E): the samples of all records of a chunk; those of the last chunk are kept."""
        if self._samples is None or self._samples[0] != chunk:
            self._samples = chunk, load_columns(chunk, ("scores",))["scores"]
        return self._samples[1]


class _Place(NamedTuple):
    """Where a record is: a row of a chunk, and perhaps a file of its whole batch's scores."""

    chunk: Path
    columns: Columns
    row: int
    whole: Path | None

    @property
    def rows(self) -> int:
        """How many rows of scores the chunk has of this record."""
        return int(self.columns["rows"][self.row])

    @property
    def score_rows(self) -> slice:
        """Which rows of the file's scores are this record's: all of a whole batch's."""
        if self.whole is not None:
            return slice(None)
        end = int(self.columns["rows"][: self.row + 1].sum())
        return slice(end - self.rows, end)

    def check_scores(self, scores: NDArray[Any], top_k: int) -> None:
        """Raise a TraceError if the scores cannot be this record's."""
        loads = self.columns["loads"][self.row]
        rows = self.rows if self.whole is None else int(loads.sum()) // top_k
        if scores.shape != (rows, loads.size):
            raise TraceError(
                f"{self.whole or self.chunk} is damaged: its scores have shape {scores.shape}, "
                f"not {(rows, loads.size)}"
            )
