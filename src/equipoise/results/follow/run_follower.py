"""RunFollower: a run's folder as it is now: what it is, how it is, and tables of rows.

The tables, each a list of rows that begin with the step:

    curve        least and greatest imbalance of the bin, imbalance, loss, idle share, and the max
                 violation of each layer
    validation   loss, imbalance, floor
    loads:N      of layer N, each expert's load in hundredths of its target
    shifts:N     of layer N, each expert's shift
    whole        the steps of which whole batches of scores were kept
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from equipoise.results.follow.metrics_follower import Evaluation, MetricsFollower
from equipoise.results.follow.run_state import RunState, run_state
from equipoise.results.follow.step_bins import Row
from equipoise.results.follow.trace_follower import TraceFollower
from equipoise.results.run import (
    METRICS_FILE,
    Measured,
    RunResult,
    StepMetrics,
    is_finished,
    load_failure,
    load_measured,
    load_result,
)
from equipoise.storage.json_files import JsonObject, read_json_object
from equipoise.storage.optional import import_optional
from equipoise.trace.layout import is_trace

Tables = dict[str, list[Row]]


@dataclass(frozen=True)
class RunSnapshot:
    """A run as it was at the last look."""

    name: str
    folder: Path
    state: RunState
    settings: JsonObject = field(default_factory=dict)
    """of config.yaml, or what the trace's header says of them"""
    about: JsonObject = field(default_factory=dict)
    """run.json"""
    result: RunResult | None = None
    measured: Measured = field(default_factory=lambda: Measured())
    error: str | None = None
    layers: tuple[str, ...] = ()
    newest: StepMetrics | None = None
    evaluation: tuple[int, Evaluation] | None = None
    last_step: int | None = None
    chance: float | None = None
    """the imbalance that chance leaves in a training batch of independent tokens"""
    sampled_tokens: int = 0
    """whose scores are kept in each record"""
    troubles: tuple[str, ...] = ()
    tables: Tables = field(default_factory=dict)


class RunFollower:
    """The run in a folder, or the one that will be there. `poll` looks for more."""

    def __init__(self, name: str, folder: Path, *, patient: bool = True) -> None:
        self.name, self.folder, self.patient = name, folder, patient
        own = is_trace(folder)
        self.metrics = MetricsFollower(folder / METRICS_FILE)
        self.trace = TraceFollower(folder if own else folder / "trace")
        self.state: RunState = "waiting"
        self._generation = 0
        self._files: dict[str, tuple[tuple[int, int, int] | None, Any]] = {}
        self._troubles: dict[str, str] = {}
        self._made: dict[tuple[int, ...], Tables] = {}

    @property
    def behind(self) -> bool:
        """Whether there is more to read at once."""
        return self.metrics.behind or self.trace.behind

    def poll(self, shown: Collection[int] = (0,)) -> bool:
        """Read what is new; `shown` are the layers whose loads are looked at. Returns whether
        anything has changed.
        """
        if is_trace(self.folder) and self.trace.folder != self.folder:
            self.trace = TraceFollower(self.folder)
        changed = self.metrics.poll()
        if self.metrics.generation != self._generation:
            self._generation = self.metrics.generation
            self.trace.forget()
        has_levels = self.metrics.newest is not None
        changed |= self.trace.poll(shown, everything=not has_levels)
        before, self.state = self.state, self._current_state()
        if changed:
            self._made.clear()
        return changed or self.state != before

    def read_everything(self) -> None:
        """Poll until nothing is left to read, all layers included."""
        self.poll(())
        while True:
            self.poll(range(len(self.trace.layers)))
            if not self.behind:
                return

    def snapshot(self, shown: Collection[int] = (0,)) -> RunSnapshot:
        """As it was at the last `poll`."""
        header = self.trace.header
        finished = is_finished(self.folder)
        self._troubles.clear()
        snapshot = RunSnapshot(
            name=self.name,
            folder=self.folder,
            state=self.state,
            settings=self._settings(),
            about=self._file("run.json", lambda: read_json_object(self.folder / "run.json")) or {},
            result=self._file("result.json", lambda: load_result(self.folder))
            if finished
            else None,
            measured=self._file("measured.json", lambda: load_measured(self.folder)) or Measured(),
            error=self._file("failure.json", lambda: load_failure(self.folder)),
            layers=header.layers if header else self._numbered_layers(),
            newest=self.metrics.newest,
            evaluation=self.metrics.last_evaluation,
            last_step=self._last_step(),
            chance=self.trace.chance_level(),
            sampled_tokens=self._sampled_tokens(),
            tables=self._tables(shown),
        )
        return _with_troubles(snapshot, self._all_troubles())

    def _tables(self, shown: Collection[int]) -> Tables:
        """Made once for all who look at the same layers, until something changes."""
        key = tuple(sorted(shown))
        if key not in self._made:
            self._made[key] = self._make_tables(key)
        return self._made[key]

    def _make_tables(self, shown: Collection[int]) -> Tables:
        has_levels = self.metrics.newest is not None
        tables: Tables = {
            "curve": self.metrics.rows() if has_levels else self.trace.level_rows(),
            "validation": [[step, *each] for step, each in self.metrics.evaluations],
        }
        for index in sorted(shown):
            if 0 <= index < len(self.trace.layers):
                tables[f"loads:{index}"] = self.trace.load_rows(index)
                tables[f"shifts:{index}"] = self.trace.shift_rows(index)
                tables["whole"] = [[step] for step in self.trace.layers[index].whole_steps]
        return tables

    def _numbered_layers(self) -> tuple[str, ...]:
        return tuple(str(index) for index in range(self.metrics.layers))

    def _last_step(self) -> int | None:
        newest = self.metrics.newest
        return newest["step"] if newest else self.trace.last_step()

    def _sampled_tokens(self) -> int:
        records = (record for layer in self.trace.layers for _, record in layer.records)
        return max((record.sampled for record in records), default=0)

    def _settings(self) -> JsonObject:
        """config.yaml; of a model that is not ours, what the trace says."""
        found = self._file("config.yaml", lambda: _read_settings(self.folder / "config.yaml"))
        return found or (self.trace.header.about if self.trace.header else {})

    def _current_state(self) -> RunState:
        seen = self.metrics.newest is not None or self.trace.header is not None
        return run_state(self.folder, self.trace.folder, seen_before=seen, patient=self.patient)

    def _all_troubles(self) -> list[str]:
        found = [*self._troubles.values(), *self.trace.troubles()]
        if self.metrics.damaged:
            lines = "line is" if self.metrics.damaged == 1 else "lines are"
            found.append(f"{self.metrics.damaged} {lines} damaged and left out in {METRICS_FILE}")
        return found

    def _file(self, name: str, load: Any) -> Any:
        """A small file, read when it has changed; None where there is none. One that was read
        stays when the run is deleted.
        """
        before = self._files.get(name)
        try:
            stat = (self.folder / name).stat()
            identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if before is None or before[0] != identity:
                before = self._files[name] = (identity, load())
        except (FileNotFoundError, NotADirectoryError):
            gone = self.state != "deleted"
            return None if gone or before is None else before[1]
        except (ValueError, KeyError, TypeError) as error:
            self._troubles[name] = f"{name} cannot be read: {error}"
        return None if before is None else before[1]


def _with_troubles(snapshot: RunSnapshot, troubles: list[str]) -> RunSnapshot:
    return replace(snapshot, troubles=tuple(troubles[:5]))


def _read_settings(path: Path) -> JsonObject:
    yaml = import_optional("yaml", extra="watch")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(content, dict):
        raise ValueError("it holds no settings")
    return content
