"""The streams by name: synthetic ones at the sizes of real models, and any trace by its folder.

A new synthetic stream is one more line in SYNTHETIC, and one in docs/streams.md.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from equipoise.arena.streams.recorded import Recorded
from equipoise.arena.streams.stream import Stream
from equipoise.arena.streams.synthetic import (
    Drift,
    Dying,
    Popularity,
    Skew,
    Swap,
    Synthetic,
    Topics,
)
from equipoise.storage.renamed import old_names
from equipoise.storage.suggestions import did_you_mean
from equipoise.trace import Trace, is_trace

_SMALL_SIZES = {"num_tokens": 4096, "num_experts": 64, "top_k": 6, "steps": 90}
_LARGE_SIZES = {"num_tokens": 4096, "steps": 48}
# of few tokens: that evidence adds up shows only over many batches
_THIN_STEPS = 1000
_UNEQUAL = tuple([2.0] * 16 + [1.0] * 48)

__getattr__ = old_names(
    __name__,
    {"find": "find_streams", "distinct": "distinct_streams", "DEFAULT": "DEFAULT_STREAMS"},
)


def _small_stream(name: str, *parts: Popularity, **options: object) -> Synthetic:
    return Synthetic(name=name, popularity=(Skew(), *parts), **{**_SMALL_SIZES, **options})  # type: ignore[arg-type]


def _large_stream(name: str, num_experts: int, top_k: int, **options: object) -> Synthetic:
    parts = (Skew(), Drift(0.005))
    sizes = {"num_experts": num_experts, "top_k": top_k, **_LARGE_SIZES}
    return Synthetic(name=name, popularity=parts, **{**sizes, **options})  # type: ignore[arg-type]


def _thin_stream(
    name: str, tokens: int, num_experts: int, top_k: int, *parts: Popularity, **options: object
) -> Synthetic:
    sizes = {"num_tokens": tokens, "num_experts": num_experts, "top_k": top_k, "steps": _THIN_STEPS}
    return Synthetic(name=name, popularity=(Skew(), *parts), **{**sizes, **options})  # type: ignore[arg-type]


SYNTHETIC: dict[str, Synthetic] = {
    stream.name: stream
    for stream in (
        _small_stream("uniform", law="uniform"),
        _small_stream("beta", law="beta"),
        _small_stream("softmax"),
        _small_stream("sigmoid", score="sigmoid"),
        _small_stream("drift", Drift(0.02)),
        _small_stream("sigmoid-drift", Drift(0.02), score="sigmoid"),
        _small_stream("swap", Swap(at=72)),
        _small_stream("dying", Dying()),
        _small_stream("topics", Topics()),
        _small_stream("sequences", sequence_offset=0.7, block=128),
        _small_stream("heavy", law="heavy"),
        _small_stream("padding", padding=0.2, block=128),
        _small_stream("unequal", target=_UNEQUAL),
        _large_stream("e256-groups", 256, 8, score="sigmoid", groups=(8, 4)),  # DeepSeek-V3
        _large_stream("e384", 384, 6, score="sigmoid"),
        _large_stream("e896", 896, 16),
        _thin_stream("thin-e4", 16, 4, 1),  # 4 choices an expert
        _thin_stream("thin-e8", 64, 8, 2),  # 16
        _thin_stream("thin-e16", 512, 16, 2),  # 64
        _thin_stream("thin-drift", 64, 8, 2, Drift(0.02)),
        _thin_stream("thin-swap", 64, 8, 2, Swap(at=800)),
        _thin_stream("thin-sequences", 256, 8, 2, sequence_offset=0.7, block=32),
    )
}
DEFAULT_STREAMS = (
    "uniform",
    "beta",
    "softmax",
    "drift",
    "swap",
    "dying",
    "topics",
    "sequences",
    "heavy",
    "padding",
    "e256-groups",
)
"""what `equipoise arena` runs by itself; the others are slow, or add little"""


def find_streams(
    name: str, *, seed: int = 0, steps: int | None = None, tokens: int | None = None
) -> list[Stream]:
    """The streams that a name stands for: a synthetic one, every layer of a trace (FOLDER), or one
    layer (FOLDER:LAYER).
    """
    for word, number in (("steps", steps), ("tokens", tokens)):
        if number is not None and number < 1:
            raise ValueError(f"{word} must be at least 1, not {number}")
    if name in SYNTHETIC:
        return [_resize_stream(SYNTHETIC[name], seed, steps, tokens)]
    folder, _, layer = name.rpartition(":") if not Path(name).exists() else (name, "", "")
    if folder and is_trace(Path(folder) / "trace"):
        # the folder of a training: its trace is meant
        folder = str(Path(folder) / "trace")
    if not folder or not is_trace(folder):
        raise ValueError(
            f"no stream {name!r}{did_you_mean(name, SYNTHETIC)}: there are "
            f"{', '.join(SYNTHETIC)}, or give the folder of a trace"
        )
    layers = [layer] if layer else Trace.open(folder).layers
    return [_shorten_stream(Recorded.of(folder, each), steps) for each in layers]


def distinct_streams(streams: Iterable[Stream]) -> list[Stream]:
    """Each stream once; layers of different folders that are called the same get the folder's whole
    path as a name.
    """
    found = list({stream.identity: stream for stream in streams}.values())
    seen = Counter(stream.name for stream in found)
    return [
        dataclasses.replace(stream, name=f"{stream.folder}:{stream.name.rpartition(':')[2]}")
        if isinstance(stream, Recorded) and seen[stream.name] > 1
        else stream
        for stream in found
    ]


def _resize_stream(
    stream: Synthetic, seed: int, steps: int | None, tokens: int | None
) -> Synthetic:
    popularity = stream.popularity
    if steps is not None:
        # what happens in the middle of the last third still happens there
        popularity = tuple(
            Swap(at=steps * part.at // stream.steps) if isinstance(part, Swap) else part
            for part in popularity
        )
    return dataclasses.replace(
        stream,
        seed=seed,
        steps=steps or stream.steps,
        num_tokens=tokens or stream.num_tokens,
        popularity=popularity,
    )


def _shorten_stream(stream: Recorded, steps: int | None) -> Recorded:
    if steps is None or steps >= stream.steps:
        return stream
    return dataclasses.replace(stream, steps=steps, records=stream.records[:steps])
