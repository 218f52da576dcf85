"""run_layers: all layers in this process, each kept when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from equipoise.results.simulation import SimulationSettings, read_layer, write_layer
from equipoise.simulation.layer import simulate_layer

LOG_FILE = "simulation.log"
StepProgress = Callable[[int, int], None]
"""called with how many steps of layers were made just now, and how many there are in all"""


def run_layers(
    settings: SimulationSettings, folder: Path | None, on_progress: StepProgress
) -> list[np.ndarray]:
    """All layers in this process, one after the other; what is in the folder is read."""
    total = settings.layers * settings.steps
    done: list[np.ndarray] = []
    try:
        for layer in range(settings.layers):
            found = None if folder is None else read_layer(folder, layer, settings)
            if found is not None:
                on_progress(settings.steps, total)
            else:
                found = run_layer(settings, folder, layer, lambda: on_progress(1, total))
            done.append(found)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped: {what_stays(settings, folder, len(done))}") from None
    return done


def run_layer(
    settings: SimulationSettings,
    folder: Path | None,
    layer: int,
    on_step: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Simulate a layer, keep it, and write a line to the log."""
    begin = time.perf_counter()
    fullest = simulate_layer(settings, layer, on_step)
    if folder is not None:
        write_layer(folder, layer, fullest)
        taken = time.perf_counter() - begin
        _log(folder, f"layer {layer}: {settings.steps} steps in {taken:.1f} s")
    return fullest


def _log(folder: Path, line: str) -> None:
    """Appended in one write, so that workers do not write into each other's lines."""
    with (folder / LOG_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def what_stays(settings: SimulationSettings, folder: Path | None, done: int) -> str:
    if folder is None:
        return "nothing was kept, since there is no --out"
    return f"{done} of {settings.layers} layers are in {folder}, the same command continues"
