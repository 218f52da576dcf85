"""layer: one layer through all steps, every balancer on the same scores.

What is exact, and what stands for something larger:

    scores      of a pool of tokens (PooledTokens), which stand for all there are. Their popularity
                moves from step to step as in every made stream.
    loads       of a forward: so many tokens as a group of devices routes at once, drawn from the
                pool with replacement. How often each is drawn is multinomial, the same for all
                balancers.
    learning    from the whole step: as many copies of the pool as make its tokens. Chance in a
                step's tokens, of which there are hundreds of times those of a forward, is left out.

Without a pool (0) every forward has tokens of its own, and rules learn from those: exact, and a
hundred times slower. So do recorded streams, whose tokens are what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from equipoise.arena.cells import Cell
from equipoise.arena.streams.stream import Batch, Stream
from equipoise.balancing import Balancer
from equipoise.results.simulation import SimulationSettings
from equipoise.routing import Routing, Tally
from equipoise.simulation.settings import layer_stream

StepDone = Callable[[], None]


def simulate_layer(
    settings: SimulationSettings, layer: int, on_step: StepDone = lambda: None
) -> np.ndarray:
    """(balancers, steps) float64: the fullest device over the mean; NaN after a rule diverged."""
    stream = layer_stream(settings, layer)
    rules = [_LayerRule(settings, layer, stream, *each) for each in settings.balancers]
    for step in range(settings.steps):
        batch = stream.batch(step)
        drawn = draw_tokens(settings, layer, step) if settings.pool else None
        for rule in rules:
            rule.take_step(batch, drawn)
        on_step()
    return np.array([rule.fullest for rule in rules])


class _LayerRule:
    """One balancer on its way through a layer."""

    def __init__(
        self,
        settings: SimulationSettings,
        layer: int,
        stream: Stream,
        name: str,
        rate: float | None,
    ) -> None:
        self.rule: Balancer = Cell(stream, name, rate).make_balancer()
        self.settings, self.layer, self.groups = settings, layer, stream.groups
        self.fullest: list[float] = []
        self.diverged = False

    def take_step(self, batch: Batch, drawn: Tensor | None) -> None:
        """Route with the shift as it is, note the fullest device, then learn."""
        if self.diverged:
            self.fullest.append(float("nan"))
            return
        routing = self.rule.route(batch.scores, groups=self.groups, mask=batch.mask)
        loads = routing.loads if drawn is None else drawn_loads(routing, drawn)
        self.fullest.append(fullest_over_mean(loads, self.settings, self.layer))
        tally = self.rule.tally(batch.scores, routing)
        copies = max(1, self.settings.step_tokens // len(batch.tokens))
        self.rule.update(repeat_tally(tally, copies))
        self.diverged = not bool(self.rule.shift_or_zeros.isfinite().all())


def draw_tokens(settings: SimulationSettings, layer: int, step: int) -> Tensor:
    """(pool,) int64: how often a forward has each token of the pool. It follows from the seed, the
    layer and the step alone, so that anything may begin anywhere.
    """
    rng = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([settings.seed, layer, step, 1]))
    )
    even = np.full(settings.pool, 1 / settings.pool)
    return torch.from_numpy(rng.multinomial(settings.forward_tokens, even))


def drawn_loads(routing: Routing, drawn: Tensor) -> Tensor:
    """(E,) int64: the loads of tokens that come so often. Empty choices have the number E."""
    experts = len(routing.loads)
    times = drawn.unsqueeze(1).expand_as(routing.experts)
    return torch.zeros(experts + 1, dtype=torch.int64).scatter_add_(
        0, routing.experts.flatten(), times.flatten()
    )[:experts]


def repeat_tally(tally: Tally, copies: int) -> Tally:
    """The tally of a batch that comes so many times over: all its counts are sums over tokens."""
    return Tally(
        loads=tally.loads * copies,
        forwards=tally.forwards * copies,
        step=tally.step,
        parts={name: part * copies for name, part in tally.parts.items()},
    )


def fullest_over_mean(loads: Tensor, settings: SimulationSettings, layer: int = 0) -> float:
    """The fullest device of a group over the mean of all; 1 where nothing was routed."""
    if settings.placement is None:
        devices = loads.reshape(settings.group, -1).sum(1)
    else:
        places = torch.tensor(settings.placement[layer % len(settings.placement)])
        devices = torch.zeros(settings.group, dtype=torch.int64).scatter_add_(0, places, loads)
    total = int(loads.sum())
    return int(devices.max()) * settings.group / total if total else 1.0
