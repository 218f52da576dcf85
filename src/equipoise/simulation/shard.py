"""shard: some layers of a simulation, in a process of their own.

    python -m equipoise.simulation.shard FOLDER INDEX COUNT

It makes layers INDEX, INDEX + COUNT, ... that are not in the folder yet. The settings are those of
the folder's simulation.json.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from equipoise.experiments.processes.job import AttemptOptions
from equipoise.results.simulation import (
    SimulationSettings,
    layer_path,
    read_layer,
    read_simulation_settings,
)
from equipoise.simulation.run_layers import run_layer

SHARDS_FOLDER = "shards"


@dataclass(frozen=True)
class Shard:
    """One of `count` jobs for the engines of experiments/processes."""

    out: Path
    settings: SimulationSettings
    index: int
    count: int

    @property
    def name(self) -> str:
        return f"layers {self.index}, {self.index + self.count}, ..."

    @property
    def folder(self) -> Path:
        return self.out / SHARDS_FOLDER / f"{self.index}-of-{self.count}"

    @property
    def layers(self) -> range:
        return range(self.index, self.settings.layers, self.count)

    @property
    def finished(self) -> bool:
        return not missing_layers(self.out, self.settings, self.layers)

    @property
    def steps(self) -> int:
        return len(self.layers) * self.settings.steps

    def prepare(self) -> None:
        """The settings are in the folder already."""

    def command(self, options: AttemptOptions) -> list[str]:
        words = [str(self.out), str(self.index), str(self.count)]
        return [sys.executable, "-m", "equipoise.simulation.shard", *words]

    def progress(self) -> tuple[int, str] | None:
        """By layers: a layer's steps are not written before it is done."""
        made = sum(layer_path(self.out, each).exists() for each in self.layers)
        return (made * self.settings.steps, f"{made} layers") if made else None

    def result_line(self) -> str:
        return f"{len(self.layers)} layers of {self.settings.steps:,} steps"


def missing_layers(out: Path, settings: SimulationSettings, layers: range) -> list[int]:
    """Those that are not in the folder, or damaged."""
    return [each for each in layers if read_layer(out, each, settings) is None]


def run_shard(out: Path, index: int, count: int) -> None:
    """Make what is missing of its layers."""
    settings = read_simulation_settings(out)
    shard = Shard(out, settings, index, count)
    for layer in missing_layers(out, settings, shard.layers):
        run_layer(settings, out, layer)


if __name__ == "__main__":
    run_shard(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
