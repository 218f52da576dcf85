"""The header of a trace, trace.json: what its records are of, and where they come from.

    {"format": "equipoise trace", "version": 1, "top_k": 6, "layers": ["1", "2"], "target": null,
     "about": {"gate": "sigmoid", "groups": null, "sequence_length": 256, ...}}

`about` may hold anything, since anybody may write a trace. What this package writes there, and what
it asks for, is `TraceAbout`: the only place that knows these keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from equipoise.storage.atomic import write_json
from equipoise.storage.json_files import JsonObject, read_json
from equipoise.trace.error import TraceError
from equipoise.trace.layout import header_path

TRACE_FORMAT, TRACE_VERSION = "equipoise trace", 1
_ALWAYS = ("gate", "groups", "sequence_length")


@dataclass(frozen=True, kw_only=True)
class TraceAbout:
    """Where the records of a trace come from. None: not known, or there is none."""

    gate: str | None
    """the score function: softmax, sigmoid, sqrt_softplus"""
    sequence_length: int | None
    """tokens in a sequence: successive rows of whole scores that are not independent"""
    groups: tuple[int, int] | None = None
    """(number, keep) where a token may use only its best groups of experts"""
    balancer: str | None = None
    update_rate: float | None = None
    balancer_options: Mapping[str, object] | None = None
    seed: int | None = None
    """of the training"""
    model: str | None = None
    """its class, its name or its folder"""
    family: str | None = None
    """of a Hugging Face model: its model_type"""
    step: int | None = None
    """of the checkpoint that scores were recorded from"""
    data: str | None = None
    """the text that it read"""

    @classmethod
    def from_json(cls, about: JsonObject) -> Self:
        """What `about` says of these; other keys are left out, missing ones are None."""
        known = {name: about.get(name) for name in (each.name for each in fields(cls))}
        for name, is_valid in _VALID.items():
            if known[name] is not None and not is_valid(known[name]):
                raise TraceError(f"the trace's header has the {name} {known[name]!r}")
        if known["groups"] is not None:
            known["groups"] = tuple(known["groups"]) or None
        return cls(**known)

    def to_json(self) -> dict[str, object]:
        """gate, groups and sequence_length always, the others where they are known."""
        about = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in about.items()
            if value is not None or name in _ALWAYS
        }


@dataclass(frozen=True, kw_only=True)
class TraceHeader:
    """What every record of a trace has in common."""

    top_k: int
    """K: experts each token takes"""
    layers: tuple[str, ...]
    """their names, all different"""
    target: tuple[float, ...] | None = None
    """weights of the experts' target loads; None: equal"""
    about: JsonObject = field(default_factory=dict)
    """what `TraceAbout` has, and anything else that JSON can hold"""

    @classmethod
    def new(
        cls,
        top_k: int,
        layers: int | Sequence[str],
        about: TraceAbout | Mapping[str, object] | None,
        target: Sequence[float] | None,
    ) -> Self:
        """The header of a new trace, checked."""
        names = [str(layer) for layer in (range(layers) if isinstance(layers, int) else layers)]
        if len(set(names)) < len(names) or not names:
            raise TraceError(
                f"a trace needs at least one layer, and names that differ, not {names}"
            )
        return cls(
            top_k=int(top_k),
            layers=tuple(names),
            target=None if target is None else tuple(float(weight) for weight in target),
            about=about.to_json() if isinstance(about, TraceAbout) else dict(about or {}),
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read trace.json of a trace's folder."""
        path = header_path(folder)
        content = _checked(folder, path)
        target = content["target"]
        return cls(
            top_k=content["top_k"],
            layers=tuple(content["layers"]),
            target=tuple(target) if target else None,
            about=content["about"],
        )

    def save(self, folder: Path) -> None:
        """Write trace.json: with it the folder becomes a trace."""
        content = {
            "format": TRACE_FORMAT,
            "version": TRACE_VERSION,
            "top_k": self.top_k,
            "layers": list(self.layers),
            "target": None if self.target is None else list(self.target),
            "about": dict(self.about),
        }
        write_json(header_path(folder), content)


def _checked(folder: Path, path: Path) -> JsonObject:
    """What trace.json holds, after every check that it is ours and of this version."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise TraceError(f"{folder} is not a trace: there is no trace.json in it") from None
    except ValueError as error:
        raise TraceError(str(error)) from None
    if not isinstance(content, dict) or content.get("format") != TRACE_FORMAT:
        raise TraceError(f"{path} is not of an equipoise trace: its format is not {TRACE_FORMAT!r}")
    if content.get("version") != TRACE_VERSION:
        raise TraceError(
            f"{folder} has version {content.get('version')} of the layout, and this equipoise "
            f"reads {TRACE_VERSION}: use a newer equipoise"
        )
    if missing := _TYPES.keys() - content.keys():
        raise TraceError(f"{path} lacks {', '.join(sorted(missing))}")
    for name, is_valid in _TYPES.items():
        if not is_valid(content[name]):
            raise TraceError(f"{path} is damaged: its {name} cannot be {content[name]!r}")
    return content


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_list_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, kinds) for each in value)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "top_k": _is_count,
    "layers": lambda layers: _is_list_of(layers, str),
    "target": lambda target: target is None or _is_list_of(target, int, float),
    "about": lambda about: isinstance(about, dict),
}
_VALID: dict[str, Callable[[Any], bool]] = {
    "sequence_length": _is_count,
    "groups": lambda groups: _is_list_of(groups, int) and len(groups) in (0, 2),
}
