"""simulate: every balancer's first steps on a cluster, as device hours lost.

result = equipoise.simulate("deepseek-v3", "h800-2048", layers=8, out="runs/simulation")
result.rows[0].balancer, result.rows[0].lost_device_hours
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.costs.cluster import Cluster
from equipoise.costs.step_time import check_price
from equipoise.costs.workload import Workload
from equipoise.experiments.processes.attempt import clear_failures
from equipoise.experiments.processes.display import Display
from equipoise.experiments.processes.engines import Engine, make_engine
from equipoise.experiments.step_time import step_time
from equipoise.results.run import load_failure
from equipoise.results.simulation import (
    LAYERS_FOLDER,
    SIMULATION_FILE,
    Simulation,
    SimulationSettings,
    read_layer,
    read_simulation_settings,
    write_settings,
)
from equipoise.simulation.costs import cost_layers
from equipoise.simulation.run_layers import StepProgress, run_layers, what_stays
from equipoise.simulation.settings import (
    DEFAULT_POOL,
    DEFAULT_STEPS,
    DEFAULT_STREAM,
    DEVICE_TOKENS,
    make_settings,
)
from equipoise.simulation.shard import Shard, missing_layers
from equipoise.storage.atomic import remove_unfinished
from equipoise.storage.output_path import output_path
from equipoise.training.settings import describe_differences, refuse_other_settings
from equipoise.training.stopping import Stopped

SHARDS_PER_WORKER = 4
"""jobs for each process, so that all end at about the same time"""


def simulate(
    model: str | Workload,
    cluster: str | Cluster,
    *,
    stream: str = DEFAULT_STREAM,
    balancers: Sequence[str] = (),
    rates: Sequence[float] | None = None,
    layers: int | None = None,
    steps: int = DEFAULT_STEPS,
    device_tokens: int = DEVICE_TOKENS,
    pool: int = DEFAULT_POOL,
    seed: int = 0,
    expert_parallel: int | None = None,
    hidden: float = 0.0,
    price: float | None = None,
    placement: str | Path | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    engine: str = "local",
    address: str | None = None,
    on_progress: StepProgress = lambda made, total: None,
    **changes: Any,
) -> Simulation:
    """Simulate the first steps of a training on a cluster, under every balancer: the device hours
    that each loses to waiting for the fullest device.

    Args:
        model: a published one by name, a preset of `equipoise train`, or a Workload.
        cluster: KIND-NUMBER such as "h800-2048", a YAML file of figures, or a Cluster.
        stream: how routers score: a built-in stream of the arena by name, in the model's sizes, or
            the folder of a trace, whose layers and records are taken as they are.
        balancers: by name; by default the arena's.
        rates: for every rule that has one; by default each runs at its own.
        layers: of the model, simulated; they stand for all. By default all.
        steps: of the training.
        device_tokens: that a device has in one forward.
        pool: tokens that stand for all there are; 0: every forward has tokens of its own.
        seed: of made streams.
        expert_parallel, hidden: as in step_time.
        price: of a device hour.
        placement: a JSON file, the device of every expert within a group, or a map of
            `equipoise place` without copies; by default equal blocks.
        out: a folder that keeps each layer when it is done; called again, it continues.
        workers: processes side by side, of some layers each.
        engine: "local", or "ray": each layer a task on a Ray cluster whose machines share the
            folder.
        address: of the Ray cluster.
        on_progress: with one worker, called with the steps made just now, and of all layers.
        changes: settings of a preset.

    Returns:
        Simulation: a row for each balancer, and the fullest device of every step.

    Example:
        >>> found = simulate("tiny", "h100-8", layers=1, steps=5, pool=64)
        >>> found.rows[0].lost_device_hours <= found.rows[-1].lost_device_hours
        True
    """
    check_price(price)
    times = step_time(model, cluster, expert_parallel=expert_parallel, hidden=hidden, **changes)
    settings = make_settings(
        times,
        stream=stream,
        balancers=balancers,
        rates=rates,
        layers=layers,
        steps=steps,
        device_tokens=device_tokens,
        pool=pool,
        seed=seed,
        placement=placement,
    )
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if engine == "local" and workers == 1 and address is None:
        folder = None if out is None else enter_simulation(output_path(out), settings)
        return cost_layers(settings, run_layers(settings, folder, on_progress), price)
    chosen = make_engine(engine, workers, address, cpus=1, gpus=0, processes=1, keep=True)
    # a cluster has any number of places for tasks
    most = settings.layers if engine == "ray" else SHARDS_PER_WORKER * workers
    count = min(settings.layers, most)
    with _folder_for(out) as path:
        done = run_shards(settings, enter_simulation(path, settings), chosen, count)
    return cost_layers(settings, done, price)


@contextlib.contextmanager
def _folder_for(out: str | Path | None) -> Iterator[Path]:
    """The one that was asked for, or one that is removed afterwards."""
    if out is not None:
        yield output_path(out).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="equipoise-simulation-") as path:
        yield Path(path)


def enter_simulation(folder: Path, settings: SimulationSettings) -> Path:
    """The folder, made for these settings; one of others is refused. More layers may be asked for:
    those that are there stay.
    """
    if (folder / SIMULATION_FILE).exists():
        there = read_simulation_settings(folder)
        here = dataclasses.replace(settings, layers=there.layers)
        refuse_other_settings(
            f"{folder} holds another simulation",
            describe_differences(dataclasses.asdict(there), dataclasses.asdict(here)),
            "Choose another folder, or delete that one",
        )
    elif folder.exists() and any(each.name[0] != "." for each in folder.iterdir()):
        raise ValueError(f"{folder} holds something else: choose another folder")
    write_settings(folder, settings)
    remove_unfinished(folder / LAYERS_FOLDER, older_than=3600.0)
    return folder


def run_shards(
    settings: SimulationSettings, folder: Path, engine: Engine, count: int
) -> list[np.ndarray]:
    """The layers as so many jobs of an engine, each in a process of its own."""
    shards = [Shard(folder, settings, index, count) for index in range(count)]
    clear_failures(shards)
    todo = [shard for shard in shards if not shard.finished]
    try:
        with Display(sum(shard.steps for shard in todo)) as display:
            engine.run(todo, display)
    except Stopped as stop:
        done = settings.layers - len(missing_layers(folder, settings, range(settings.layers)))
        raise Stopped(
            f"stopped: {what_stays(settings, folder, done)}", stop.exit_code - 128
        ) from None
    if failed := [shard for shard in shards if not shard.finished]:
        reason = load_failure(failed[0].folder)
        raise ChildProcessError(f"{failed[0].name} of {folder} failed: {reason}")
    return [_read_whole(folder, layer, settings) for layer in range(settings.layers)]


def _read_whole(folder: Path, layer: int, settings: SimulationSettings) -> np.ndarray:
    found = read_layer(folder, layer, settings)
    if found is None:
        raise OSError(f"{folder}: layer {layer} was there and is gone: run the same command again")
    return found
