"""costs: from the fullest devices of layers to device hours, by the line of costs/step_time.py.

A step waits in every layer; the layers simulated stand for all of the model. So the time that a
step loses is (mean of the fullest device over layers - 1) times what experts and exchange take.
"""

from __future__ import annotations

import numpy as np

from equipoise.costs.fullest import fullest_by_chance
from equipoise.results.simulation import BalancerCost, Simulation, SimulationSettings

EARLY = 10
"""the first tenth of the steps"""
EVEN = 1.1
"""the fullest device over the mean, from where on little is lost"""


def cost_layers(
    settings: SimulationSettings, layers: list[np.ndarray], price: float | None = None
) -> Simulation:
    """The table and the curves, of the layers that are done: (balancers, steps) each."""
    if not layers:
        raise ValueError("no layer is done yet: run the same `equipoise simulate` again")
    fullest = np.stack(layers)
    chance = fullest_by_chance(
        settings.forward_tokens, settings.num_experts, settings.group, settings.top_k
    )
    names = balancer_labels(settings)
    rows = [_cost_row(settings, fullest[:, n], n, price) for n in range(len(names))]
    curves = {name: fullest[:, n].mean(0).tolist() for n, name in enumerate(names)}
    rows.sort(key=lambda row: (row.diverged_after is not None, row.lost_device_hours))
    return Simulation(settings, chance, rows, curves, settings.layers - len(layers))


def balancer_labels(settings: SimulationSettings) -> list[str]:
    """The names of the curves; with the rate where a balancer runs at several."""
    names = [name for name, _ in settings.balancers]
    return [
        f"{name} {rate:g}" if rate is not None and names.count(name) > 1 else name
        for name, rate in settings.balancers
    ]


def _cost_row(
    settings: SimulationSettings, fullest: np.ndarray, place: int, price: float | None
) -> BalancerCost:
    """One balancer's, from (layers, steps)."""
    name, rate = settings.balancers[place]
    seconds = settings.waiting_seconds * (fullest - 1)
    hours = seconds * settings.devices / 3600
    lost = float(hours.mean(0).sum())
    balanced = settings.steps * settings.balanced_seconds * settings.devices / 3600
    curve = fullest.mean(0)
    early = max(1, settings.steps // EARLY)
    return BalancerCost(
        balancer=name,
        rate=rate,
        lost_device_hours=lost,
        standard_error=_error_over_layers(hours.sum(1), settings),
        lost_share=lost / (balanced + lost),
        lost_early=float(hours[:, :early].mean(0).sum()),
        fullest_first=float(curve[0]),
        fullest_last=float(curve[-max(1, len(curve) // 3) :].mean()),
        even_after=_first_even_step(curve),
        lost_money=None if price is None else price * lost,
        diverged_after=_divergence(fullest),
    )


def _error_over_layers(hours: np.ndarray, settings: SimulationSettings) -> float | None:
    """Of the mean, where some layers stand for others: 0 where all of the model were simulated."""
    if len(hours) < 2:
        return None
    left_out = 1 - len(hours) / settings.moe_layers
    return float(hours.std(ddof=1) / len(hours) ** 0.5 * max(0.0, left_out) ** 0.5)


def _first_even_step(curve: np.ndarray) -> int | None:
    even = np.flatnonzero(curve <= EVEN)
    return int(even[0]) if len(even) else None


def _divergence(fullest: np.ndarray) -> int | None:
    """The number of steps that the first layer to diverge made."""
    lost = np.isnan(fullest).any(0)
    return int(lost.argmax()) if lost.any() else None
