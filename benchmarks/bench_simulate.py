"""What `equipoise simulate` costs: a step of a layer, beside drawing its scores alone, and memory.

    python benchmarks/bench_simulate.py [--rounds 5]

Each contestant makes ten steps of one layer under one balancer; "scores alone" draws the pool and
routes nothing. Aims: a step of the usual seven balancers within 0.1 s at 256 experts, so that a
thousand steps of a layer take under two minutes; memory below 1 GB at 896 experts.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
from collections.abc import Callable
from functools import partial

import torch
from timing import Neighbours, race

from equipoise.experiments.step_time import step_time
from equipoise.results.simulation import SimulationSettings
from equipoise.simulation.layer import simulate_layer
from equipoise.simulation.settings import layer_stream, make_settings

STEPS = 10
SIZES = (("deepseek-v3", 256, 8, "h800-2048"), ("kimi-k2", 384, 8, "h800-2048"))
LARGEST = ("e896", 896, 16)


def settings_for(model: str, cluster: str) -> SimulationSettings:
    return make_settings(
        step_time(model, cluster),
        stream="e384",
        balancers=(),
        rates=None,
        layers=1,
        steps=STEPS,
        device_tokens=4096,
        pool=2048,
        seed=0,
        placement=None,
    )


def draw_scores(settings: SimulationSettings) -> None:
    stream = layer_stream(settings, 0)
    for step in range(STEPS):
        stream.batch(step)


def contestants(settings: SimulationSettings) -> dict[str, Callable[[], object]]:
    works: dict[str, Callable[[], object]] = {"scores alone": partial(draw_scores, settings)}
    for each in settings.balancers:
        alone = dataclasses.replace(settings, balancers=(each,))
        works[each[0]] = partial(simulate_layer, alone, 0)
    works["all of them"] = partial(simulate_layer, settings, 0)
    return works


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    cases = [(f"{name}, E={E}, K={K}", settings_for(name, c)) for name, E, K, c in SIZES]
    name, experts, top_k = LARGEST
    large = dataclasses.replace(cases[0][1], num_experts=experts, top_k=top_k)
    cases.append((f"{name}, E={experts}, K={top_k}", large))
    for title, settings in cases:
        with Neighbours() as neighbours:
            timings = race(contestants(settings), rounds)
        print(f"\n| {title} | ms a step of a layer | x scores alone |\n|---|---|---|")
        for each, timing in timings.items():
            print(f"| {each} | {timing.fastest_ms / STEPS:.1f} | {timing.ratio.median:.2f} |")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"most memory so far {memory:,.0f} MB; others took {neighbours.share:.0%}")


if __name__ == "__main__":
    main()
