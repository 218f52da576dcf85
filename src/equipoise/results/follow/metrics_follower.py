"""MetricsFollower: metrics.jsonl, read from where the last look ended.

A file of hundreds of megabytes is drawn at once from a few hundred lines spread over it, and then
read in slices; what was read replaces what was sampled. A file that was replaced (a resumed
training writes it anew), shortened or deleted is noticed: the bytes before the place where reading
stopped are no longer those that were read.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import IO, NamedTuple

from equipoise.results.follow.step_bins import KeptRows, MeanBins, Row, shown_figure
from equipoise.results.run import EvaluationMetrics, StepMetrics, parse_metrics

SLICE_BYTES = 4 << 20
"""read at one look"""
SAMPLED_BYTES = 16 << 20
"""a file with more than this to read is sampled first"""
SAMPLED_LINES = 400
TAIL_BYTES = 1 << 16
"""read at the end while what is before it is still to be read"""
REMEMBERED_BYTES = 256
"""before the place where reading stopped: they tell whether it is still the same file"""
FIGURES = ("imbalance", "loss", "idle_share")
"""of every step; behind them stands the max violation of each layer"""


class Evaluation(NamedTuple):
    """An evaluation, as far as the page shows it."""

    loss: float | None
    imbalance: float | None
    floor: float | None


class MetricsFollower:
    """The metrics of a training so far. `poll` looks for more."""

    def __init__(self, path: Path, *, slice_bytes: int = SLICE_BYTES) -> None:
        self.path, self.slice_bytes = path, slice_bytes
        self.generation = 0
        """how often the file was begun anew"""
        self._forget()

    def _forget(self) -> None:
        self.steps, self.evaluations = MeanBins(), KeptRows[Evaluation]()
        self.newest: StepMetrics | None = None
        self.last_evaluation: tuple[int, Evaluation] | None = None
        self.layers = 0
        self.damaged = 0
        """lines that are not rows of metrics"""
        self.behind = False
        """whether there is more to read"""
        self._offset, self._before = 0, b""
        self._inode: int | None = None
        self._read_until = -1
        self._sample: dict[int, list[float]] = {}

    def poll(self) -> bool:
        """Read what is new, at most a slice. Returns whether anything has changed."""
        try:
            with self.path.open("rb") as file:
                return self._read_more(file)
        except (FileNotFoundError, NotADirectoryError):
            # what was read stays on show; a new file will be another one
            self.behind = False
            return False

    def rows(self) -> list[Row]:
        """Step, least and greatest imbalance of the bin, then the means of FIGURES and of each
        layer's max violation.
        """
        made = self.steps.rows(banded=0)
        for step in sorted(self._sample):
            if step > self._read_until:
                values = [shown_figure(value) for value in self._sample[step]]
                made.append([step, values[0], values[0], *values])
        return made

    def _read_more(self, file: IO[bytes]) -> bool:
        stat = os.fstat(file.fileno())
        changed = self._notice_replacement(file, stat)
        self._inode = stat.st_ino
        if not self._offset and not self._sample and stat.st_size > SAMPLED_BYTES:
            self._sample_lines(file, stat.st_size)
            # the first look is quick, and the next ones read
            self.behind = True
            return True
        file.seek(self._offset)
        data = file.read(self.slice_bytes)
        # a line without an end is still written
        end = data.rfind(b"\n") + 1
        if not end and len(data) == self.slice_bytes:
            end, self.damaged = len(data), self.damaged + 1
        for line in data[:end].splitlines():
            self._add_line(line)
        self._before = (self._before + data[:end])[-REMEMBERED_BYTES:]
        self._offset += end
        self.behind = len(data) == self.slice_bytes
        if self.behind and self._sample:
            self._sample_tail(file, stat.st_size)
        return changed or end > 0

    def _notice_replacement(self, file: IO[bytes], stat: os.stat_result) -> bool:
        if self._inode is None:
            return False
        same = stat.st_ino == self._inode and stat.st_size >= self._offset
        if same:
            file.seek(self._offset - len(self._before))
            same = file.read(len(self._before)) == self._before
        if not same:
            self._forget()
            self.generation += 1
        return not same

    def _sample_lines(self, file: IO[bytes], size: int) -> None:
        """Some lines, evenly over the file: enough to draw, until all were read."""
        for number in range(SAMPLED_LINES):
            file.seek(number * size // SAMPLED_LINES)
            if number:
                # the rest of a line
                file.readline()
            self._keep_sample(file.readline())
        self._sample_tail(file, size)

    def _sample_tail(self, file: IO[bytes], size: int) -> None:
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).splitlines(keepends=True)
        for line in lines[1:]:
            self._keep_sample(line)
        recent = sorted(self._sample)
        # of the tail the latest step only, so that the sample stays bounded
        for step in recent[SAMPLED_LINES:-1]:
            del self._sample[step]

    def _keep_sample(self, line: bytes) -> None:
        row = parse_metrics(line.decode("utf-8", "replace")) if line.endswith(b"\n") else None
        if row is None or row["kind"] != "train":
            return
        values = self._figures_of(row)
        if values is not None:
            self._sample[row["step"]] = values
            self._note_newest(row)

    def _add_line(self, line: bytes) -> None:
        row = parse_metrics(line.decode("utf-8", "replace"))
        if row is None:
            self.damaged += 1
        elif row["kind"] == "train":
            self._add_step(row)
        elif row["kind"] == "validation":
            self._add_evaluation(row)

    def _add_step(self, row: StepMetrics) -> None:
        values = self._figures_of(row)
        if values is None:
            self.damaged += 1
            return
        self.steps.add(row["step"], values)
        self._read_until = max(self._read_until, row["step"])
        self._note_newest(row)

    def _note_newest(self, row: StepMetrics) -> None:
        if self.newest is None or row["step"] >= self.newest["step"]:
            self.newest = row

    def _add_evaluation(self, row: EvaluationMetrics) -> None:
        found = Evaluation(*(shown_figure(_number(row.get(name))) for name in Evaluation._fields))
        self.evaluations.add(row["step"], found)
        self.last_evaluation = (row["step"], found)

    def _figures_of(self, row: StepMetrics) -> list[float] | None:
        """FIGURES and each layer's max violation; None for a row of another number of layers."""
        try:
            levels = row["layers"]["max_violation"]
            figures = [_number(row.get(name)) for name in FIGURES]
            values = figures + [_number(level) for level in levels]
        except (KeyError, TypeError, AttributeError):
            return None
        self.layers = self.layers or len(levels)
        return values if len(levels) == self.layers else None


def _number(value: object) -> float:
    """NaN for what is no number: a gap in a figure."""
    return float(value) if isinstance(value, int | float) else math.nan
