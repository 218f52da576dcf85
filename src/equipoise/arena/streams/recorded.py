"""Recorded streams: the scores that a training, or `equipoise record`, left in a Trace.

Scores are mapped from the files and not read: a trace may be larger than memory.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from equipoise.arena.streams.stream import Batch, Stream
from equipoise.trace import Trace, TraceError

FEWEST_BLOCKS = 32
"""how many pieces of a batch stand for sequences, where their length is not known"""


@dataclass(frozen=True, kw_only=True)
class Recorded(Stream):
    """One layer of a trace: its records that have scores, in order."""

    folder: str
    layer: int
    records: tuple[int, ...]
    """the steps of the training that batches are of"""
    digest: str = ""
    """of the last batch's scores: another trace in the same folder has another digest"""

    @classmethod
    def of(cls, folder: str | Path, layer: int | str = 0) -> Recorded:
        """The stream of a layer. Every record must have kept scores, as many as the others."""
        trace = Trace.open(folder)
        index = trace.index(layer)
        steps = trace.whole_steps(index) or trace.sampled_steps(index)
        if not steps:
            raise TraceError(
                f"{folder} has no scores of layer {trace.layers[index]!r}: train with "
                "--trace-scores, or use `equipoise record`"
            )
        rows, experts = trace.scores(index, steps[0]).shape
        if not rows:
            raise TraceError(
                f"step {steps[0]} of layer {trace.layers[index]!r} in {folder} has no tokens"
            )
        digest = hashlib.sha256(
            trace.scores(index, steps[-1]).tobytes(), usedforsecurity=False
        ).hexdigest()
        return cls(
            name=f"{_run_title(Path(folder))}:{trace.layers[index]}",
            num_tokens=rows,
            num_experts=experts,
            top_k=trace.top_k,
            steps=len(steps),
            groups=trace.groups,
            target=trace.target,
            block=_sequence_rows(trace, index, steps[0]),
            folder=str(Path(folder).resolve()),
            layer=index,
            records=tuple(steps),
            digest=digest,
        )

    def batch(self, step: int) -> Batch:
        if not 0 <= step < self.steps:
            raise IndexError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        number = self.records[step]
        scores = self._trace.scores(self.layer, number)
        batch = Batch(torch.from_numpy(np.ascontiguousarray(scores, np.float32)))
        if not torch.isfinite(batch.scores).all():
            token, expert = (~torch.isfinite(batch.scores)).nonzero()[0].tolist()
            raise TraceError(
                f"{self.name}: step {number} has the score {batch.scores[token, expert]} (token "
                f"{token}, expert {expert}): record it again, with logits in float32"
            )
        return batch

    @property
    def training_tokens(self) -> int:
        """In a batch of the training: more than the rows here, where scores are a sample."""
        return int(self._trace.loads(self.layer, self.records[-1]).sum()) // self.top_k

    @property
    def identity(self) -> str:
        """The header is part of it, since it says how scores were made."""
        return super().identity + self._trace.header_text

    @functools.cached_property
    def _trace(self) -> Trace:
        return Trace.open(self.folder)


def _sequence_rows(trace: Trace, layer: int, step: int) -> int:
    """How many successive rows of scores are of one sequence: tokens of a text are not independent.

    A sample has fewer rows of each sequence than it has tokens, and may be of one rank only. There,
    and where the trace does not say how long sequences are, 32 pieces of the batch stand for them.
    """
    rows, length = len(trace.scores(layer, step)), trace.sequence_length
    complete = rows * trace.top_k == int(trace.loads(layer, step).sum())
    if complete and length is not None and length <= rows // 2 and rows % length == 0:
        return length
    return max(1, rows // FEWEST_BLOCKS)


def _run_title(folder: Path) -> str:
    """runs/a/trace is called a."""
    folder = folder.resolve()
    return folder.parent.name if folder.name == "trace" else folder.name
