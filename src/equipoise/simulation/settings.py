"""settings: what is simulated, worked out from what was asked for. Mistakes are reported here,
before anything runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from equipoise.arena.cells import Cell
from equipoise.arena.streams.catalogue import SYNTHETIC, find_streams
from equipoise.arena.streams.recorded import Recorded
from equipoise.arena.streams.stream import Stream
from equipoise.arena.streams.synthetic import PooledTokens, Synthetic
from equipoise.balancing import method_spec, method_specs
from equipoise.costs.step_time import StepTime
from equipoise.results.simulation import SimulationSettings
from equipoise.simulation.placed import read_devices

DEFAULT_STREAM = "e384"
"""sigmoid scores, popularity that drifts slowly; in the model's sizes"""
DEFAULT_POOL = 2048
DEFAULT_STEPS = 1000
DEVICE_TOKENS = 4096
"""of one forward: a micro-batch is a sequence or two"""
_MOST_LAYERS = 100_000
"""layers have seeds of their own, next to each other"""


def make_settings(
    times: StepTime,
    *,
    stream: str,
    balancers: Sequence[str],
    rates: Sequence[float] | None,
    layers: int | None,
    steps: int,
    device_tokens: int,
    pool: int,
    seed: int,
    placement: str | Path | None,
) -> SimulationSettings:
    """The settings of a simulation; `rates` are tried for every rule that has one, by default each
    runs at its own.
    """
    for word, number in (("steps", steps), ("device_tokens", device_tokens)):
        if number < 1:
            raise ValueError(f"{word} must be at least 1, not {number}")
    if pool < 0:
        raise ValueError(f"pool is a number of tokens, or 0 for none, not {pool}")
    load, moe_layers = times.workload, times.workload.moe_layers
    if layers is not None and not 1 <= layers <= moe_layers:
        raise ValueError(
            f"{load.name} has {moe_layers} MoE layers: simulate 1 to all, not {layers}"
        )
    made = SimulationSettings(
        model=load.name,
        cluster=times.cluster.name,
        stream=_stream_name(stream),
        num_experts=load.num_experts,
        top_k=load.top_k,
        devices=times.cluster.devices,
        group=times.group,
        moe_layers=moe_layers,
        layers=layers or moe_layers,
        steps=steps,
        forward_tokens=device_tokens * times.group,
        step_tokens=load.tokens,
        pool=pool,
        seed=seed,
        balanced_seconds=times.seconds(),
        waiting_seconds=times.expert_seconds + times.exchange_seconds,
        balancers=_named_rates(balancers, rates),
        placement=None
        if placement is None
        else read_devices(placement, load.num_experts, times.group),
    )
    return _checked(made)


def _named_rates(
    balancers: Sequence[str], rates: Sequence[float] | None
) -> tuple[tuple[str, float | None], ...]:
    """Each once, with every rate that was asked for."""
    names = balancers or [spec.name for spec in method_specs() if spec.arena_default]
    found: list[tuple[str, float | None]] = []
    for name in dict.fromkeys(names):
        spec = method_spec(name)
        found += [(name, rate) for rate in dict.fromkeys(rates or ())] if spec.rate else []
        if not (rates and spec.rate):
            found.append((name, spec.default_rate))
    return tuple(found)


def _stream_name(stream: str) -> str:
    """A folder by its whole path, since workers may be elsewhere."""
    return stream if stream in SYNTHETIC else str(Path(stream).resolve())


def _checked(settings: SimulationSettings) -> SimulationSettings:
    """Streams and balancers are made once, so that what is wrong with them is known."""
    recorded = _recorded_layers(settings)
    if recorded:
        settings = dataclasses.replace(
            settings,
            layers=len(recorded),
            steps=min(settings.steps, *(each.steps for each in recorded)),
            forward_tokens=recorded[0].num_tokens,
            pool=0,
        )
    stream = layer_stream(settings, 0)
    if (stream.num_experts, stream.top_k) != (settings.num_experts, settings.top_k):
        raise ValueError(
            f"{settings.stream} was recorded of {stream.num_experts} experts, of which a token "
            f"takes {stream.top_k}; {settings.model} has {settings.num_experts} and "
            f"{settings.top_k}: give a model of these sizes"
        )
    for name, rate in settings.balancers:
        Cell(stream, name, rate).make_balancer()
    return settings


def layer_stream(settings: SimulationSettings, layer: int) -> Stream:
    """The scores of one layer: a made stream with a seed of its own, or a recorded one."""
    recorded = _recorded_layers(settings)
    if recorded:
        return recorded[layer]
    seed = settings.seed * _MOST_LAYERS + layer
    (found,) = find_streams(settings.stream, seed=seed, steps=settings.steps)
    assert isinstance(found, Synthetic)
    kind = PooledTokens if settings.pool else Synthetic
    sizes = {
        "num_tokens": settings.pool or settings.forward_tokens,
        "num_experts": settings.num_experts,
        "top_k": settings.top_k,
        "target": None,
        "groups": _groups_of(found, settings),
    }
    return kind(
        **{each.name: getattr(found, each.name) for each in dataclasses.fields(found)} | sizes
    )


def _groups_of(stream: Stream, settings: SimulationSettings) -> tuple[int, int] | None:
    """Those of the stream, where the model's experts divide into them."""
    divides = stream.groups is not None and settings.num_experts % stream.groups[0] == 0
    return stream.groups if divides else None


def _recorded_layers(settings: SimulationSettings) -> list[Recorded]:
    """The layers of a trace; none for a made stream."""
    if settings.stream in SYNTHETIC:
        return []
    found = find_streams(settings.stream, steps=settings.steps)
    return [each for each in found if isinstance(each, Recorded)][: settings.layers]
