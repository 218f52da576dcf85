"""step_bins: a summary of any number of steps in a bounded number of bins.

A bin is `width` successive steps. When there are more than `most` bins, the width doubles and
neighbours are joined, so a training of any length is at most `most` rows, about as many as a screen
has columns, and adding a step costs the same at the beginning and at the end.

    MeanBins   the mean of every figure over the steps of a bin: losses, imbalances
    KeptRows   one row of each bin as it is: evaluations, records of a trace
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

MOST_BINS = 512
SHOWN_DIGITS = 4
"""of a figure: more than a screen shows"""
Cell = float | int | None
Row = list[Cell]
"""the step, then figures; None is a gap"""
Kept = TypeVar("Kept")


def shown_figure(value: float) -> float | None:
    """Rounded; None for what is not finite, which JSON has no word for."""
    return float(f"{value:.{SHOWN_DIGITS}g}") if math.isfinite(value) else None


def shown_figures(values: NDArray[Any]) -> list[Cell]:
    return [shown_figure(value) for value in values.tolist()]


@dataclass
class _Bin:
    last: int
    """its latest step"""
    count: NDArray[np.int64]
    total: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def join(self, other: _Bin) -> None:
        self.last = max(self.last, other.last)
        self.count += other.count
        self.total += other.total
        self.low = np.fmin(self.low, other.low)
        self.high = np.fmax(self.high, other.high)


class MeanBins:
    """Means, least and greatest values of C figures over bins of steps. NaN is a gap, which no
    mean counts.
    """

    def __init__(self, most: int = MOST_BINS) -> None:
        self.most, self.width = most, 1
        self._bins: dict[int, _Bin] = {}

    def add(self, step: int, values: Sequence[float]) -> None:
        array = np.asarray(values, np.float64)
        there = np.isfinite(array)
        new = _Bin(step, there.astype(np.int64), np.where(there, array, 0.0), array, array)
        found = self._bins.setdefault(step // self.width, new)
        if found is not new:
            found.join(new)
        while len(self._bins) > self.most:
            self._double_width()

    def rows(self, banded: int) -> list[Row]:
        """The last step of each bin, the means, and of figure `banded` the least and greatest."""
        made: list[Row] = []
        for _, each in sorted(self._bins.items()):
            with np.errstate(invalid="ignore", divide="ignore"):
                means = shown_figures(each.total / each.count)
            band = shown_figures(np.array([each.low[banded], each.high[banded]]))
            made.append([each.last, *band, *means])
        return made

    def __len__(self) -> int:
        return len(self._bins)

    def _double_width(self) -> None:
        bins, self._bins = self._bins, {}
        self.width *= 2
        for index in sorted(bins):
            found = self._bins.setdefault(index // 2, bins[index])
            if found is not bins[index]:
                found.join(bins[index])


class KeptRows(Generic[Kept]):
    """The first row of each bin, as it is."""

    def __init__(self, most: int = MOST_BINS) -> None:
        self.most, self.width = most, 1
        self._kept: dict[int, tuple[int, Kept]] = {}

    def widen_to(self, first: int, last: int) -> None:
        """Wide enough bins for these steps, before any row is read: what would be dropped later
        need not be read at all.
        """
        while last // self.width - first // self.width >= self.most:
            self._double_width()

    def lacks(self, first: int, last: int) -> bool:
        """Whether a bin that these steps reach has no row yet."""
        bins = range(first // self.width, last // self.width + 1)
        return any(index not in self._kept for index in bins)

    def add(self, step: int, row: Kept) -> None:
        index = step // self.width
        if index not in self._kept or step < self._kept[index][0]:
            self._kept[index] = (step, row)
        while len(self._kept) > self.most:
            self._double_width()

    def forget_from(self, step: int) -> None:
        """Forget the rows of this step and of later ones."""
        self._kept = {index: each for index, each in self._kept.items() if each[0] < step}

    def __iter__(self) -> Iterator[tuple[int, Kept]]:
        """Steps and their rows, in order."""
        return iter(sorted(self._kept.values(), key=lambda each: each[0]))

    def __len__(self) -> int:
        return len(self._kept)

    def _double_width(self) -> None:
        kept, self._kept = self._kept, {}
        self.width *= 2
        for index in sorted(kept):
            self._kept.setdefault(index // 2, kept[index])
