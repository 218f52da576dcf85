"""advise: which update rate a rule should have, from a few recorded batches and theory alone.

    advice = equipoise.advise("runs/a/trace", steps=100_000)
    advice.rate_of("deepseek").rate

What the batches say is in evidence.py, what follows from it in prediction.py. Nothing is replayed
and nothing trained: the rate is the one whose forecast is least. docs/results/advise.md has the
judgement of it, docs/theory/advise.md where it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from equipoise.arena.advice.evidence import LayerEvidence, read_layer
from equipoise.arena.advice.prediction import RULES, Forecast, forecast
from equipoise.arena.streams.catalogue import find_streams
from equipoise.arena.streams.recorded import Recorded
from equipoise.arena.streams.stream import Stream
from equipoise.balancing import method_spec
from equipoise.optimum.hindsight import thin_evenly
from equipoise.results.advice import Advice, RateAdvice

MOST_BATCHES = 12
"""of a layer, the last ones of a recording: each is solved once"""
WORTH = 1.1
"""rates whose forecast is within a tenth of the best are as good"""
_COARSE, _FINE = 13, 9
RateProgress = Callable[[int, int], None]
"""called with how many rules and layers were finished just now, and how many there are"""


def advise(
    stream: str,
    *,
    steps: int = 1000,
    tokens: int | None = None,
    seed: int = 0,
    on_progress: RateProgress = lambda done, total: None,
) -> Advice:
    """The update rates of deepseek, proportional, inverse and inverse_sqrt, from theory.

    Args:
        stream: a trace (FOLDER, or FOLDER:LAYER for one layer), or a built-in stream by name.
        steps: of the training that the rates are for.
        tokens: in a batch of that training; by default as many as the recorded batches had.
        seed: of built-in streams.
        on_progress: called with the number of parts just finished, and of all.

    Example:
        >>> advice = equipoise.advise("thin-e4", steps=100)
        >>> [rate.balancer for rate in advice.rates if rate.over_floor < 2]
        ['deepseek', 'proportional', 'inverse', 'inverse_sqrt']
    """
    for word, number in (("steps", steps), ("tokens", tokens)):
        if number is not None and number < 1:
            raise ValueError(f"{word} must be at least 1, not {number}")
    found = find_streams(stream, seed=seed)
    total = len(found) + len(RULES)
    layers = []
    for each in found:
        layers.append(_evidence_of(each, tokens))
        on_progress(1, total)
    rates = []
    for rule in RULES:
        rates.append(_advise_rule(layers, rule, steps))
        on_progress(1, total)
    seen = [layer.as_seen for layer in layers]
    drift = float(np.sqrt(np.mean([np.mean(layer.drift**2) for layer in seen])))
    return Advice(
        stream=stream,
        layers=len(layers),
        batches=min(layer.batches for layer in layers),
        steps=steps,
        tokens=layers[0].tokens,
        floor=_mean(layer.floor for layer in layers),
        inflation=_mean(layer.inflation for layer in layers),
        drift=drift,
        drift_over_chance=_mean(layer.drift_over_chance for layer in seen),
        allowed_over_chance=_mean(layer.drift_over_chance for layer in layers),
        least_curvature=_mean(layer.least_curvature for layer in layers),
        rates=tuple(rates),
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _evidence_of(stream: Stream, tokens: int | None) -> LayerEvidence:
    if stream.groups is not None:
        raise ValueError(
            f"{stream.name} limits tokens to groups of experts, and theory knows no groups: try "
            "`equipoise tune`, which replays"
        )
    # drift and noise fall during a training: what comes is like what was last
    recent = _recent_from(stream.steps) if isinstance(stream, Recorded) else 0
    chosen = list(thin_evenly(range(recent, stream.steps), MOST_BATCHES))
    batches = [stream.batch(step).tokens.numpy() for step in chosen]
    steps: Sequence[int] = chosen
    if isinstance(stream, Recorded):
        steps = [stream.records[step] for step in chosen]
        tokens = tokens or stream.training_tokens
    return read_layer(
        stream.name,
        batches,
        steps,
        stream.top_k,
        target=stream.target,
        block=stream.block,
        tokens=tokens,
    )


def _recent_from(batches: int) -> int:
    """The last third of a recording; of few batches the last half."""
    return batches * 2 // 3 if batches >= 9 else batches // 2 if batches >= 4 else 0


def _advise_rule(layers: Sequence[LayerEvidence], rule: str, steps: int) -> RateAdvice:
    """The rate with the least forecast: a coarse grid over all that can make sense, then a fine one
    around its best. It must do for the most drift there can be; what is told of it is the forecast
    for the drift that was seen.
    """
    cautious = _Forecasts(layers, rule, steps)
    seen = [layer.as_seen for layer in layers]
    same = all(each is layer for each, layer in zip(seen, layers))
    told = cautious if same else _Forecasts(seen, rule, steps)
    low, high = _sensible_rates(layers, rule)
    coarse = np.geomspace(low, high, _COARSE)
    ratio = coarse[1] / coarse[0]
    near = min(coarse, key=cautious.steady)
    fine = np.geomspace(near / ratio, near * ratio, _FINE)
    best = _two_digits(min(fine, key=cautious.steady))
    level = cautious.steady(best)
    good = [rate for rate in cautious.tried if cautious.steady(rate) <= WORTH * level]
    floor, imbalance = _mean(layer.floor for layer in layers), told.steady(best)
    usual = method_spec(rule).default_rate
    assert usual is not None
    return RateAdvice(
        balancer=rule,
        rate=best,
        imbalance=imbalance,
        over_floor=imbalance / floor,
        settles_after=max(each.settles_after for each in told.at(best)),
        low=_two_digits(min(good)),
        high=_two_digits(max(good)),
        usual_rate=usual,
        usual_imbalance=told.steady(usual),
        band=max(layer.band(best) for layer in layers) if rule == "deepseek" else None,
        curve=tuple((rate, told.steady(rate)) for rate in sorted({*cautious.tried, usual})),
    )


class _Forecasts:
    """What a rule leaves in every layer, at each rate that was asked about."""

    def __init__(self, layers: Sequence[LayerEvidence], rule: str, steps: int) -> None:
        self.layers, self.rule, self.steps = layers, rule, steps
        self.tried: dict[float, tuple[Forecast, ...]] = {}

    def at(self, rate: float) -> tuple[Forecast, ...]:
        """One for each layer."""
        if rate not in self.tried:
            self.tried[rate] = tuple(
                forecast(layer, self.rule, rate, self.steps) for layer in self.layers
            )
        return self.tried[rate]

    def steady(self, rate: float) -> float:
        """Imbalance of the last third, mean over layers."""
        return _mean(each.steady for each in self.at(rate))


def _sensible_rates(layers: Sequence[LayerEvidence], rule: str) -> tuple[float, float]:
    """From where a rule hardly moves to where it cannot settle.

    deepseek's unit is what chance does to p*, sigma / (s T); the others' is 1 over a curvature.
    """
    ends: list[tuple[float, float]] = []
    for layer in layers:
        if rule == "deepseek":
            noise = np.sqrt(np.diag(layer.noise)) / (layer.flip_density * layer.tokens)
            unit = float(np.median(noise))
            ends.append((1e-3 * unit, 30 * unit))
            continue
        most = float(np.linalg.eigvalsh(layer.hessian)[-1]) / layer.tokens
        if rule == "proportional":
            most = most * layer.tokens / float(layer.target.mean())
            ends.append((1e-4 / most, 2 / most))
        else:
            least = max(layer.least_curvature, 1e-6 * most)
            ends.append((1e-3 / most, 100 / least))
    return min(low for low, _ in ends), max(high for _, high in ends)


def _two_digits(rate: float) -> float:
    return float(f"{rate:.2g}")
