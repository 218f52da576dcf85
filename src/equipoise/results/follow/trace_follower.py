"""TraceFollower: the layers of a trace, each read as far as it is looked at.

A layer that is shown is read for a whole screen; the others, where their imbalance is not in
metrics.jsonl, a few files at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.results.follow.layer_follower import LayerFollower, LayerRecord
from equipoise.results.follow.step_bins import Row, shown_figure, shown_figures
from equipoise.trace.error import TraceError
from equipoise.trace.header import TraceHeader
from equipoise.trace.layout import header_path, layer_folder

FILES_PER_LOOK = 240
"""of the layers that are not shown, all together"""
SHOWN_FILES_PER_LOOK = 96
"""of a layer that is shown"""
LOAD_PARTS = 100
"""loads are sent in hundredths of the target load: whole numbers are short"""
LayerRows = list[Row]


class TraceFollower:
    """A trace that may not be there yet. `poll` looks for more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header: TraceHeader | None = None
        self.layers: list[LayerFollower] = []
        self.trouble = ""
        self._identity: tuple[int, int, int] | None = None

    def forget(self) -> None:
        """Read everything that is shown again: the training was resumed."""
        self.layers = [LayerFollower(each.folder) for each in self.layers]

    @property
    def behind(self) -> bool:
        return any(layer.behind for layer in self.layers)

    def poll(self, shown: Collection[int], *, everything: bool) -> bool:
        """Read what is new of the layers that are shown, and with `everything` of the others.
        Returns whether anything has changed.
        """
        changed = self._open_header()
        for index in shown:
            if 0 <= index < len(self.layers):
                changed |= self.layers[index].poll(SHOWN_FILES_PER_LOOK)
        rest = [each for n, each in enumerate(self.layers) if n not in shown] if everything else []
        for layer in rest:
            changed |= layer.poll(max(1, FILES_PER_LOOK // len(rest)))
        return changed

    def troubles(self) -> list[str]:
        found = [self.trouble, *(layer.trouble for layer in self.layers)]
        return [each for each in found if each]

    def last_step(self) -> int | None:
        """The newest step, of the layers that were looked at."""
        steps = [layer.last_step for layer in self.layers if layer.last_step is not None]
        return max(steps, default=None)

    def load_rows(self, index: int) -> LayerRows:
        """Step, then each expert's load in hundredths of its target."""
        return [
            [step, *np.rint(LOAD_PARTS * self._relative(record)).astype(int).tolist()]
            for step, record in self.layers[index].records
        ]

    def shift_rows(self, index: int) -> LayerRows:
        """Step, then each expert's shift; none where the rule has no shift."""
        records = list(self.layers[index].records)
        if not any(np.any(record.shift) for _, record in records):
            return []
        return [[step, *shown_figures(record.shift)] for step, record in records]

    def level_rows(self) -> list[Row]:
        """As MetricsFollower.rows: step, imbalance thrice, no loss, no idle share, and each layer's
        max violation.
        """
        by_step: dict[int, dict[int, NDArray[np.float64]]] = {}
        for index, layer in enumerate(self.layers):
            for step, record in layer.records:
                by_step.setdefault(step, {})[index] = self._relative(record)
        made: list[Row] = []
        for step, layers in sorted(by_step.items()):
            level = shown_figure(float(np.mean([np.abs(r - 1).mean() for r in layers.values()])))
            most = {index: shown_figure(float(r.max()) - 1) for index, r in layers.items()}
            every = [most.get(index) for index in range(len(self.layers))]
            made.append([step, level, level, level, None, None, *every])
        return made

    def chance_level(self) -> float | None:
        """The imbalance that a batch of independent tokens would have under even probabilities: an
        expert's load is then binomial, and its mean deviation nearly that of a normal law.
        """
        newest = next((record for layer in self.layers for _, record in layer.records), None)
        if newest is None or self.header is None:
            return None
        even = float(newest.loads.sum()) / newest.loads.size
        share = self.header.top_k / newest.loads.size
        if even <= 0 or share >= 1:
            return None
        return math.sqrt(2 * (1 - share) / (math.pi * even))

    def _relative(self, record: LayerRecord) -> NDArray[np.float64]:
        """(E): loads over target loads; 1 where nothing was counted."""
        loads: NDArray[Any] = record.loads.astype(np.float64)
        weights = np.ones(loads.size)
        if self.header is not None and self.header.target is not None:
            weights = np.asarray(self.header.target, np.float64)
        if weights.shape != loads.shape or not loads.sum():
            return np.ones(loads.size)
        return loads * weights.sum() / (loads.sum() * weights)

    def _open_header(self) -> bool:
        try:
            stat = header_path(self.folder).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if identity == self._identity:
            return False
        self._identity = identity
        try:
            self.header, self.trouble = TraceHeader.load(self.folder), ""
        except TraceError as error:
            self.header, self.trouble, self.layers = None, str(error), []
            return True
        count = len(self.header.layers)
        self.layers = [LayerFollower(layer_folder(self.folder, index)) for index in range(count)]
        return True
