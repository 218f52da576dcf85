"""TraceWriter: appends records to a trace."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from equipoise.storage.atomic import remove_unfinished
from equipoise.trace.chunks import forget_later_steps, load_columns, save_chunk, save_columns
from equipoise.trace.error import TraceError
from equipoise.trace.header import TraceAbout, TraceHeader
from equipoise.trace.layout import (
    CHUNK_RECORDS,
    chunk_path,
    chunk_paths,
    first_and_last,
    holds_one_record,
    is_trace,
    layer_folder,
    whole_path,
)
from equipoise.trace.reader import Trace
from equipoise.trace.record import Columns, columns_of_record, join_columns


class TraceWriter:
    """Appends records to a new trace; `TraceWriter.resume` continues one.

    Args:
        folder: where to; made if it is not there. A folder that already holds a trace is refused.
        top_k: experts each token takes.
        layers: how many, or their names.
        about: where the records come from: a `TraceAbout`, or anything JSON can hold.
        target: weights of the experts' target loads, if they are not equal.

    Example:
        >>> writer = equipoise.TraceWriter("run/trace", top_k=6, layers=["moe.0"])  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        top_k: int,
        layers: int | Sequence[str],
        about: TraceAbout | Mapping[str, object] | None = None,
        target: Sequence[float] | None = None,
    ) -> None:
        folder = Path(folder)
        if is_trace(folder):
            raise TraceError(
                f"{folder} already holds a trace: continue it by TraceWriter.resume, or take "
                "another folder"
            )
        header = TraceHeader.new(top_k, layers, about, target)
        for index in range(len(header.layers)):
            layer_folder(folder, index).mkdir(parents=True, exist_ok=True)
        header.save(folder)
        self._continue(folder)

    @classmethod
    def resume(cls, folder: str | os.PathLike[str], *, after: int) -> Self:
        """Continue a trace: forget every record of a step later than `after`, and append from
        there.
        """
        trace = Trace.open(folder)
        for index in range(len(trace.layers)):
            forget_later_steps(layer_folder(trace.folder, index), after)
            remove_unfinished(layer_folder(trace.folder, index))
        writer = cls.__new__(cls)
        writer._continue(trace.folder)
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
            whole: whether `scores` are of all tokens.
        """
        index = self.trace.index(layer)
        columns = columns_of_record(step, shift, shift_after, loads, step_size, unit, scores, whole)
        self._check_experts(index, columns)
        if whole:
            self._check_whole(step, layer, columns)
        if step <= self._last[index]:
            raise TraceError(
                f"layer {layer!r} already has step {self._last[index]}, so step {step} cannot "
                "follow. To go back, resume(after=...)"
            )
        folder = layer_folder(self.trace.folder, index)
        if whole:
            # before its record, so that no record is ever without its scores
            save_columns(whole_path(folder, step), {"scores": columns["scores"]})
            columns |= {"scores": columns["scores"][:0], "rows": np.zeros(1, np.int64)}
        save_columns(chunk_path(folder, step, step), columns)
        self._last[index], self._single[index] = step, self._single[index] + 1
        if self._single[index] >= CHUNK_RECORDS:
            self._join_records(index)

    def close(self) -> None:
        """Join what is left to chunks. Forgetting to call it loses nothing."""
        for index, single in enumerate(self._single):
            if single > 1:
                self._join_records(index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_experts(self, index: int, columns: Columns) -> None:
        """Records of a layer are joined to one array, and have one target."""
        experts = columns["shift"].shape[1]
        known = self._experts.setdefault(index, experts)
        if experts != known:
            raise TraceError(
                f"layer {self.trace.layers[index]!r} has {known} experts, so a record of {experts} "
                "cannot follow"
            )

    def _check_whole(self, step: int, layer: int | str, columns: Columns) -> None:
        counted, tokens = columns["loads"].sum(), len(columns["scores"])
        if tokens * self.trace.top_k != counted:
            raise TraceError(
                f"the loads of step {step}, layer {layer!r}, count {counted} choices, but "
                f"{tokens} tokens make {tokens * self.trace.top_k}: whole=True takes all rows the "
                "loads were counted from"
            )

    def _continue(self, folder: Path) -> None:
        """Begin to append after what the folder holds."""
        self.trace = Trace.open(folder)
        chunks = [
            chunk_paths(layer_folder(folder, index)) for index in range(len(self.trace.layers))
        ]
        self._last = [
            max((first_and_last(path)[1] for path in each), default=-1) for each in chunks
        ]
        self._single = [sum(map(holds_one_record, each)) for each in chunks]
        self._experts = {
            index: load_columns(each[-1], ("loads",))["loads"].shape[1]
            for index, each in enumerate(chunks)
            if each
        }
        if self.trace.target is not None:
            self._experts |= dict.fromkeys(range(len(chunks)), len(self.trace.target))

    def _join_records(self, index: int) -> None:
        """Many records into one chunk. If the process is killed halfway a record is there twice,
        which reading allows for.
        """
        folder = layer_folder(self.trace.folder, index)
        single = [path for path in chunk_paths(folder) if holds_one_record(path)]
        save_chunk(folder, join_columns([load_columns(path) for path in single]))
        for path in single:
            path.unlink()
        self._single[index] = 0
