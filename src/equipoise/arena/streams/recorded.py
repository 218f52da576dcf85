"""Recorded streams: the scores that a training, or `equipoise record`, left in a Trace.

Scores are mapped from the file and not read: a trace may be larger than memory. np.savez stores
arrays in a zip without compressing them, so an array lies in the file as it would in memory, and
only its place has to be found.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from equipoise.arena.streams.stream import Batch, Stream
from equipoise.trace import Trace, TraceError

FEWEST_BLOCKS = 32  # where nobody says how long sequences are


@dataclass(frozen=True, kw_only=True)
class Recorded(Stream):
    """One layer of a trace: its records that have scores, in order."""

    folder: str
    layer: int
    records: tuple[int, ...]
    """the steps of the training that batches are of"""
    digest: str = ""
    """of the last batch's scores: another trace in the same folder has other results"""

    @classmethod
    def of(cls, folder: str | Path, layer: int | str = 0) -> Recorded:
        """The stream of a layer. Every record must have kept scores, as many as the others."""
        trace = Trace.open(folder)
        index = trace.index(layer)
        steps = trace.whole_steps(index) or [
            step for step in trace.steps(index) if len(trace.record(index, step).scores)
        ]
        if not steps:
            raise TraceError(
                f"{folder} has no scores of layer {trace.layers[index]!r}: train with "
                "--trace-scores, or use `equipoise record`"
            )
        first = trace.record(index, steps[0])
        rows, experts = first.scores.shape
        if not rows:
            raise TraceError(
                f"step {steps[0]} of layer {trace.layers[index]!r} in {folder} has no tokens"
            )
        digest = hashlib.sha256(
            trace.record(index, steps[-1]).scores.tobytes(), usedforsecurity=False
        ).hexdigest()
        groups = trace.about.get("groups")
        return cls(
            name=f"{_title(Path(folder))}:{trace.layers[index]}",
            num_tokens=rows,
            num_experts=experts,
            top_k=trace.top_k,
            steps=len(steps),
            groups=tuple(groups) if groups else None,
            target=trace.target,
            block=_block(trace, rows),
            folder=str(Path(folder).resolve()),
            layer=index,
            records=tuple(steps),
            digest=digest,
        )

    def batch(self, step: int) -> Batch:
        if not 0 <= step < self.steps:
            raise IndexError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        folder, number = Path(self.folder) / f"{self.layer:03}", self.records[step]
        whole = folder / f"{number:09}.whole.npz"
        scores = mapped(whole, "scores") if whole.exists() else _sample(folder, number)
        batch = Batch(torch.from_numpy(np.ascontiguousarray(scores, np.float32)))
        if not torch.isfinite(batch.scores).all():
            token, expert = (~torch.isfinite(batch.scores)).nonzero()[0].tolist()
            raise TraceError(
                f"{self.name}: step {number} has the score {batch.scores[token, expert]} (token "
                f"{token}, expert {expert}): "
                "record it again, with logits in float32"
            )
        return batch

    @property
    def identity(self) -> str:
        """The header is part of it, since it says how scores were made."""
        return super().identity + (Path(self.folder) / "trace.json").read_text()


def mapped(path: Path, name: str) -> np.ndarray:
    """An array of an .npz file, as a map of the file that never writes to it."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = archive.getinfo(f"{name}.npy")
    except (zipfile.BadZipFile, KeyError) as error:
        raise TraceError(f"{path} is truncated or is not of an equipoise trace: {error}") from error
    if entry.compress_type != zipfile.ZIP_STORED:
        raise TraceError(
            f"{path} is compressed and cannot be mapped: write traces with TraceWriter"
        )
    with path.open("rb") as file:
        file.seek(entry.header_offset)
        lengths = struct.unpack(
            "<26x2H", file.read(30)
        )  # of the name and of the extra field, in a zip's local header
        file.seek(sum(lengths), 1)
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
        return np.memmap(path, dtype, "c", file.tell(), shape, "F" if fortran else "C")


def _sample(folder: Path, number: int) -> np.ndarray:
    """The rows of one record, out of the chunk that holds it."""
    for path in sorted(folder.glob("?????????-?????????.npz")):
        first, last = map(int, path.stem.split("-"))
        if first <= number <= last:
            steps, rows = mapped(path, "step"), mapped(path, "rows")
            if (found := np.flatnonzero(steps == number)).size:
                end = int(rows[: found[0] + 1].sum())
                return mapped(path, "scores")[end - int(rows[found[0]]) : end]
    raise TraceError(f"{folder} has no step {number} any more")


def _block(trace: Trace, rows: int) -> int:
    """Tokens of a text are not independent. If nobody says how long sequences are, 32 pieces are
    taken for them.
    """
    length = trace.about.get("sequence_length")
    if isinstance(length, int) and 0 < length <= rows // 2 and rows % length == 0:
        return length
    return max(1, rows // FEWEST_BLOCKS)


def _title(folder: Path) -> str:
    """runs/a/trace is called a."""
    folder = folder.resolve()
    return folder.parent.name if folder.name == "trace" else folder.name
