"""The streams by name: made ones at the sizes of real models, and any trace by its folder."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from equipoise.arena.streams.recorded import Recorded
from equipoise.arena.streams.stream import Stream
from equipoise.arena.streams.synthetic import Drift, Dying, Skew, Swap, Synthetic, Topics
from equipoise.storage.suggestions import did_you_mean
from equipoise.trace import Trace, is_trace

_SMALL = {"num_tokens": 4096, "num_experts": 64, "top_k": 6, "steps": 90}
_LARGE = {"num_tokens": 4096, "steps": 48}
_THIN_STEPS = 1000  # of few tokens: that evidence adds up shows only over many batches
_UNEQUAL = tuple([2.0] * 16 + [1.0] * 48)


def _small(name: str, *likes: object, **options: object) -> Synthetic:
    return Synthetic(name=name, likes=(Skew(), *likes), **{**_SMALL, **options})  # type: ignore[arg-type]


def _large(name: str, num_experts: int, top_k: int, **options: object) -> Synthetic:
    likes = (Skew(), Drift(0.005))
    sizes = {"num_experts": num_experts, "top_k": top_k, **_LARGE}
    return Synthetic(name=name, likes=likes, **{**sizes, **options})  # type: ignore[arg-type]


def _thin(
    name: str, tokens: int, num_experts: int, top_k: int, *likes: object, **options: object
) -> Synthetic:
    sizes = {"num_tokens": tokens, "num_experts": num_experts, "top_k": top_k, "steps": _THIN_STEPS}
    return Synthetic(name=name, likes=(Skew(), *likes), **{**sizes, **options})  # type: ignore[arg-type]


SYNTHETIC: dict[str, Synthetic] = {
    stream.name: stream
    for stream in (
        _small("uniform", law="uniform"),
        _small("beta", law="beta"),
        _small("softmax"),
        _small("sigmoid", score="sigmoid"),
        _small("drift", Drift(0.02)),
        _small("sigmoid-drift", Drift(0.02), score="sigmoid"),
        _small("swap", Swap(at=72)),
        _small("dying", Dying()),
        _small("topics", Topics()),
        _small("sequences", taste=0.7, block=128),
        _small("heavy", law="heavy"),
        _small("padding", padding=0.2, block=128),
        _small("unequal", target=_UNEQUAL),
        _large("e256-groups", 256, 8, score="sigmoid", groups=(8, 4)),  # DeepSeek-V3
        _large("e384", 384, 6, score="sigmoid"),
        _large("e896", 896, 16),
        _thin("thin-e4", 16, 4, 1),  # 4 choices an expert
        _thin("thin-e8", 64, 8, 2),  # 16
        _thin("thin-e16", 512, 16, 2),  # 64
        _thin("thin-drift", 64, 8, 2, Drift(0.02)),
        _thin("thin-swap", 64, 8, 2, Swap(at=800)),
        _thin("thin-sequences", 256, 8, 2, taste=0.7, block=32),
    )
}
DEFAULT = (
    "uniform", "beta", "softmax", "drift", "swap", "dying", "topics", "sequences", "heavy", "padding", "e256-groups",
)  # fmt: skip
"""what `equipoise arena` runs by itself; the others are the slow ones, and those that tell little
more
"""


def find(
    name: str, *, seed: int = 0, steps: int | None = None, tokens: int | None = None
) -> list[Stream]:
    """The streams a name stands for: a made one; every layer of a trace's folder; or one layer, as
    FOLDER:LAYER.
    """
    for word, number in (("steps", steps), ("tokens", tokens)):
        if number is not None and number < 1:
            raise ValueError(f"{word} must be at least 1, not {number}")
    if name in SYNTHETIC:
        return [_changed(SYNTHETIC[name], seed, steps, tokens)]
    folder, _, layer = name.rpartition(":") if not Path(name).exists() else (name, "", "")
    if folder and is_trace(Path(folder) / "trace"):
        folder = str(Path(folder) / "trace")  # a run's folder will do
    if not folder or not is_trace(folder):
        raise ValueError(
            f"no stream {name!r}{did_you_mean(name, SYNTHETIC)}: there are "
            f"{', '.join(SYNTHETIC)}, or give the folder of a trace"
        )
    layers = [layer] if layer else Trace.open(folder).layers
    return [_cut(Recorded.of(folder, each), steps) for each in layers]


def distinct(streams: Iterable[Stream]) -> list[Stream]:
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


def _changed(stream: Synthetic, seed: int, steps: int | None, tokens: int | None) -> Synthetic:
    likes = stream.likes
    if steps is not None:  # what happens in the middle of the last third still happens there
        likes = tuple(
            Swap(at=steps * part.at // stream.steps) if isinstance(part, Swap) else part
            for part in likes
        )
    return dataclasses.replace(
        stream,
        seed=seed,
        steps=steps or stream.steps,
        num_tokens=tokens or stream.num_tokens,
        likes=likes,
    )


def _cut(stream: Recorded, steps: int | None) -> Recorded:
    if steps is None or steps >= stream.steps:
        return stream
    return dataclasses.replace(stream, steps=steps, records=stream.records[:steps])
