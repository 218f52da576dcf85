"""simulation: what `equipoise simulate --out FOLDER` leaves on disk, as typed rows.

    FOLDER/
        simulation.json       the settings, and what a balanced step takes (SimulationSettings)
        layers/00003.npz      a layer: the fullest device of every step, under every balancer
        shards/               where workers keep their locks and errors
        simulation.log        a line for each layer when it is done

The terminal's table, the page, its CSV and --json are all made from a Simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from equipoise.storage.atomic import replace_file, write_json
from equipoise.storage.json_files import read_json_object

SIMULATION_FILE = "simulation.json"
SIMULATION_FORMAT = 1
"""raise it when the same settings would give other figures than before"""
LAYERS_FOLDER = "layers"
_REMEDY = "delete it, and run the same `equipoise simulate` again"


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """All that a simulation's figures follow from."""

    model: str
    cluster: str
    stream: str
    """a built-in one by name, or the folder of a trace"""
    num_experts: int
    top_k: int
    devices: int
    """of the whole cluster"""
    group: int
    """devices that share the experts of a layer"""
    moe_layers: int
    """of the model"""
    layers: int
    """of them, simulated: they stand for all"""
    steps: int
    forward_tokens: int
    """that a group routes in one forward: loads are counted of these"""
    step_tokens: int
    """that rules learn from: all of a step"""
    pool: int
    """tokens that stand for all there are; 0: every forward has tokens of its own"""
    seed: int
    balanced_seconds: float
    """of a step without any waiting"""
    waiting_seconds: float
    """of it, the part that grows with the fullest device"""
    balancers: tuple[tuple[str, float | None], ...]
    """names with their rates"""
    placement: tuple[tuple[int, ...], ...] | None = None
    """the device of every expert in a group, a row for all layers or one for each, taken in turn;
    None: equal blocks
    """

    def to_json(self) -> dict[str, object]:
        return {"format": SIMULATION_FORMAT, **asdict(self)}


@dataclass(frozen=True)
class BalancerCost:
    """A row of the table: what one balancer cost."""

    balancer: str
    rate: float | None
    lost_device_hours: float
    """of all steps, above a balanced training"""
    standard_error: float | None
    """of lost_device_hours, from the spread over layers; None for one layer"""
    lost_share: float
    """of all device hours that were used"""
    lost_early: float
    """device hours lost in the first tenth of the steps"""
    fullest_first: float
    """the fullest device over the mean, in the first step"""
    fullest_last: float
    """mean of the last third of the steps"""
    even_after: int | None
    """steps until the fullest device has at most 1.1 times the mean; None: never"""
    lost_money: float | None
    """None without a price"""
    diverged_after: int | None = None
    """the step whose update left a layer's shift useless; the figures above are of no use then"""


@dataclass(frozen=True)
class Simulation:
    """What came out."""

    settings: SimulationSettings
    chance: float
    """the fullest device under perfect balance, by chance alone"""
    rows: list[BalancerCost]
    """fewest lost hours first"""
    fullest: dict[str, list[float]]
    """balancer -> the fullest device of every step, mean over layers"""
    layers_missing: int = 0

    def summary(self) -> dict[str, object]:
        """What --json prints."""
        return {
            "settings": asdict(self.settings),
            "chance": self.chance,
            "layers_missing": self.layers_missing,
            "balancers": [asdict(row) for row in self.rows],
        }


def hours_text(hours: float) -> str:
    """Three digits and no power of ten."""
    return f"{hours:,.0f}" if abs(hours) >= 100 else f"{hours:.3g}"


def write_settings(folder: Path, settings: SimulationSettings) -> None:
    """Make the folder, and say in it what it is of."""
    (folder / LAYERS_FOLDER).mkdir(parents=True, exist_ok=True)
    write_json(folder / SIMULATION_FILE, settings.to_json())


def read_simulation_settings(folder: Path) -> SimulationSettings:
    """Those of a folder; one of another format is refused."""
    path = folder / SIMULATION_FILE
    names = [each.name for each in fields(SimulationSettings)]
    found = read_json_object(path, keys=names, remedy=_REMEDY)
    if found.get("format") != SIMULATION_FORMAT:
        raise ValueError(
            f"{path} has format {found.get('format')}, and this version writes "
            f"{SIMULATION_FORMAT}: choose another folder, or delete that one"
        )
    return _settings_of(found)


def _settings_of(found: Mapping[str, object]) -> SimulationSettings:
    """JSON has lists where the settings have tuples."""
    values = {each.name: found[each.name] for each in fields(SimulationSettings)}
    balancers, placement = values["balancers"], values["placement"]
    assert isinstance(balancers, list)
    values["balancers"] = tuple((name, rate) for name, rate in balancers)
    values["placement"] = tuple(map(tuple, placement)) if isinstance(placement, list) else None
    return SimulationSettings(**values)  # type: ignore[arg-type]


def layer_path(folder: Path, layer: int) -> Path:
    return folder / LAYERS_FOLDER / f"{layer:05}.npz"


def write_layer(folder: Path, layer: int, fullest: np.ndarray) -> None:
    """(balancers, steps) float64, whole or not at all."""
    with replace_file(layer_path(folder, layer)) as unfinished, unfinished.open("wb") as file:
        np.savez(file, fullest=fullest)


def read_layer(folder: Path, layer: int, settings: SimulationSettings) -> np.ndarray | None:
    """(balancers, steps); None where it is not there yet, or damaged: then it is made again."""
    try:
        with np.load(layer_path(folder, layer), allow_pickle=False) as file:
            fullest = file["fullest"]
    except (OSError, ValueError, KeyError, EOFError):
        return None
    wanted = (len(settings.balancers), settings.steps)
    return fullest if fullest.shape == wanted and fullest.dtype == np.float64 else None
