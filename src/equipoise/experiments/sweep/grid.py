"""grid: a search written down. Every combination of the values on its axes is one training, a
trial.

    base:                                   what all trials have: settings of `equipoise train`
      preset: tiny
      model.num_experts: 32                 a dot, or another level, goes into the model's sizes
    axes:
      balancer: [deepseek, aux]
      update_rate: [1e-3, 1e-2]             2 x 2 = 4 trials
      seed: [0, 1]                          trials that differ in nothing else are averaged

`axes` may be a list of such blocks; the trials are then those of all blocks together (for rules
that have no u, for example).
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from equipoise.experiments.processes.job import Job
from equipoise.results.columns import setting_column
from equipoise.storage.suggestions import did_you_mean
from equipoise.storage.yaml_files import parse_yaml
from equipoise.training.config import Config, preset
from equipoise.training.settings import FlatSettings

BUILT_IN_GRIDS = ("paper", "paper-tiny", "demo")
SELF_EXPLAINING = ("balancer", "balancer_options.scope")
"""settings whose value alone stands in a trial's name"""
SET_BY_SWEEP = ("out", "resume")
TRIAL_DEFAULTS = {"trace_every": 0, "keep_checkpoints": 1}
"""unless the grid says otherwise: hundreds of traces fill a disk and nobody looks at them"""
MAX_NAME_LENGTH = 100


@dataclass(frozen=True)
class Trial:
    """One point of the grid."""

    settings: FlatSettings
    """the axes' values, as the config has them"""
    job: Job

    @property
    def name(self) -> str:
        return self.job.name


@dataclass(frozen=True)
class Grid:
    """Settings that all trials have, and blocks of axes."""

    name: str
    base: FlatSettings
    blocks: list[dict[str, list[Any]]]

    @property
    def default_folder(self) -> Path:
        """Where its trials go if nobody says."""
        return Path(f"runs/sweep-{self.name}")

    def trials(self, folder: Path) -> list[Trial]:
        """All of them, in the order of the file; the last axis moves fastest. Raises if a setting
        is wrong.
        """
        found: dict[str, Trial] = {}
        for block in self.blocks:
            for values in itertools.product(*block.values()):
                trial = self._trial(dict(zip(block, values, strict=True)), folder)
                if trial.name in found:
                    raise ValueError(f"the grid {self.name} holds {trial.name} twice")
                found[trial.name] = trial
        return list(found.values())

    def _trial(self, point: FlatSettings, folder: Path) -> Trial:
        config = _trial_config({**TRIAL_DEFAULTS, **self.base, **point})
        settings = {key: _setting_value(config, key) for key in point}
        name = trial_name(settings)
        return Trial(settings, Job(name, replace(config, out=str(folder / "trials" / name))))


def read_grid(path: str | Path) -> Grid:
    """A grid from a YAML file, or a built-in one by name."""
    name, text = _grid_text(path)
    content = parse_yaml(text, str(path))
    if not isinstance(content, Mapping) or "axes" not in content:
        raise ValueError(
            f"{path} is no grid: it needs a section `axes:` with a list of values for each "
            "setting to vary"
        )
    if unknown := [key for key in content if key not in ("base", "axes")]:
        meant = did_you_mean(str(unknown[0]), ("base", "axes"))
        raise ValueError(f"{path}: no section {unknown[0]!r}{meant} in a grid")
    base = _read_section(content.get("base") or {}, path, "base")
    written = content["axes"] if isinstance(content["axes"], list) else [content["axes"] or {}]
    blocks = [_read_section(block, path, "axes") for block in written]
    _check_axes(path, base, blocks)
    return Grid(name, base, blocks)


def _grid_text(path: str | Path) -> tuple[str, str]:
    """(name, YAML) of a file or of a built-in grid."""
    if str(path) in BUILT_IN_GRIDS and not Path(path).is_file():
        built_in = files("equipoise.experiments.sweep").joinpath("grids", f"{path}.yaml")
        return str(path), built_in.read_text(encoding="utf-8")
    if not Path(path).exists():
        raise ValueError(
            f"no grid {str(path)!r}: neither a file, nor one of the built-in ones, "
            f"{', '.join(BUILT_IN_GRIDS)}"
        )
    try:
        return Path(path).stem, Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not YAML: it is no text") from None


def _read_section(section: Any, path: str | Path, name: str) -> FlatSettings:
    if not isinstance(section, Mapping):
        raise ValueError(
            f"{path}: `{name}:` must hold lines of the form 'setting: value', not {section!r}"
        )
    return _flatten_section(section)


def _flatten_section(section: Mapping[Any, Any], prefix: str = "") -> FlatSettings:
    """{"model": {"top_k": 2}} as {"model.top_k": 2}; balancer_options stay together, they have
    names of their own.
    """
    found: FlatSettings = {}
    for key, value in section.items():
        if isinstance(value, Mapping) and key != "balancer_options":
            found |= _flatten_section(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _check_axes(path: str | Path, base: FlatSettings, blocks: list[FlatSettings]) -> None:
    if not blocks or any(not block for block in blocks):
        raise ValueError(f"{path}: `axes:` is empty, so there is nothing to search")
    for key in (*base, *(key for block in blocks for key in block)):
        if key in SET_BY_SWEEP:
            raise ValueError(f"{path}: {key!r} is set by the sweep, for each trial")
    for key, values in (item for block in blocks for item in block.items()):
        if key in base:
            raise ValueError(f"{path}: {key!r} stands in `base` and in `axes`: which is meant?")
        if not isinstance(values, list) or not values:
            raise ValueError(
                f"{path}: {key} needs a list of values, such as [{values or 1}], not {values!r}"
            )


def _trial_config(settings: Mapping[str, Any]) -> Config:
    """From settings with dots in their names. The config refuses unknown names and suggests known
    ones.
    """
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return preset(nested.pop("preset", "tiny"), **nested)


def _setting_value(config: Config, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = found[part] if isinstance(found, Mapping) else getattr(found, part)
    return found


def trial_name(settings: Mapping[str, Any]) -> str:
    """Readable, and valid as a file name on every system. A name that had to be changed or cut for
    that gets a digest, to stay unique.
    """
    said = "_".join(
        f"{'' if key in SELF_EXPLAINING else f'{setting_column(key).short}='}{_format_value(value)}"
        for key, value in settings.items()
    )
    safe = re.sub(r"[^\w.=+-]", "-", said, flags=re.ASCII)[:MAX_NAME_LENGTH]
    if safe == said and not said.startswith("."):
        return said
    return f"{safe.lstrip('.')}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
