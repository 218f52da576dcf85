"""A whole training step of `small` beside the same architecture from transformers; what balancing
takes of it; where time goes.

    .venv/bin/python benchmarks/bench_training.py                  some minutes
    .venv/bin/python benchmarks/bench_training.py --threads 1  steadier where other jobs hold a core
    .venv/bin/python benchmarks/bench_training.py --rounds 5       a quick look

The twin is GLM-4-MoE (transformers), which with its extras off is our model: rotary multi-head
attention, SwiGLU, one dense layer, shared experts, sigmoid gates. Both sides start from the same
weights, read the same tokens, and do what a step of training does: forward, loss, backward, clip,
fused AdamW. Ours also counts and balances. The first losses are compared, and each side has a
process of its own (see bench_moe.py for why). transformers runs with each implementation of its
experts, ours as `equipoise train` does it and once more without lanes, where both give all threads
to one operation after the other.

Balancing is what `tally`, `reduce` and `update` take, all layers together, of a step of ours
without lanes.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from bench_moe import OtherNeighbours
from rich.console import Console
from rich.table import Table
from timing import Timing, race
from torch.profiler import ProfilerActivity, profile

from equipoise.balancing import Balancer
from equipoise.training import preset
from equipoise.training.config import Config
from equipoise.training.data.corpus import Corpus
from equipoise.training.ranks import World
from equipoise.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.model.twin import our_state, theirs

TARGET, BALANCING_TARGET = 1.2, 0.02
OURS, ONE_LANE = "equipoise", "equipoise, one lane"
THEIRS = ("transformers grouped_mm", "transformers eager")
BALANCERS = ("deepseek", "quantile", "curvature")


def config(balancer: str = "deepseek") -> Config:
    """`small`, with the gates of the twin."""
    chosen = preset("small", balancer=balancer)
    return dataclasses.replace(
        chosen, model=dataclasses.replace(chosen.model, score="sigmoid", renormalize=True)
    )


def trainer(balancer: str = "deepseek", lanes: int | None = 1) -> Trainer:
    """With random tokens: speed does not depend on them, and nothing has to be prepared."""
    chosen = dataclasses.replace(config(balancer), lanes=lanes)
    tokens = (
        np.random.default_rng(0).integers(0, chosen.model.vocab_size, 200_000).astype(np.uint16)
    )
    corpus = Corpus("random", Path(), "", chosen.model.vocab_size, tokens, tokens)
    return Trainer(chosen, corpus, World(0, 1, torch.device("cpu")))


def ours(lanes: int | None) -> Callable[[], float]:
    made = trainer(lanes=lanes)
    made.net.load_state_dict(our_state(theirs(made.config.model)), strict=False)
    numbers = iter(range(1, 10**9))
    return lambda: made.step(next(numbers)).loss


def transformers(implementation: str) -> Callable[[], float]:
    batches, chosen = trainer().batches, config()
    model = theirs(chosen.model).train()
    model.config._experts_implementation = implementation
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.learning_rate, fused=True)
    numbers = iter(range(10**9))

    def step() -> float:
        tokens, targets = batches[next(numbers)]
        loss = model(tokens, shift_labels=targets, labels=targets, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.clip)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def make(name: str) -> Callable[[], float]:
    if name in (OURS, ONE_LANE):
        return ours(lanes=1 if name == ONE_LANE else None)
    return transformers(name.split()[1])


class Contestant:
    """A process that makes one step whenever it is told to."""

    def __init__(self, name: str, threads: int) -> None:
        self.line, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=serve, args=(other, name, threads), daemon=True)
        self.process.start()
        self.line.recv()
        self.losses: list[float] = []

    def __call__(self) -> None:
        self.line.send("step")
        self.losses.append(self.line.recv())

    def leave(self) -> None:
        self.line.send(None)
        self.process.join()


def serve(line: Connection, name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    step = make(name)
    line.send("ready")
    while line.recv() is not None:
        line.send(step())


def compete(rounds: int, threads: int) -> dict[str, Timing]:
    contestants = {name: Contestant(name, threads) for name in (OURS, ONE_LANE, *THEIRS)}
    timings = race(contestants, rounds)
    first = {name: each.losses[0] for name, each in contestants.items()}
    for contestant in contestants.values():
        contestant.leave()
    if max(first.values()) - min(first.values()) > 1e-3:
        raise SystemExit(f"the first losses differ, so these are not the same model: {first}")
    return timings


def balancing_share(name: str, steps: int) -> float:
    """Median over steps of the time in tally, reduce and update, divided by the step's."""
    made, spent = trainer(name), [0.0]
    import equipoise.training.trainer as module

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            started = perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                spent[0] += perf_counter() - started

        return wrapper

    kind: Any = type(next(iter(made.balancers.values())))
    originals = kind.tally, Balancer.update, module.reduce
    timed_calls = (timed(each) for each in originals)
    kind.tally, Balancer.update, module.reduce = timed_calls  # type: ignore[method-assign]
    shares = []
    try:
        for number in range(1, steps + 3):
            spent[0], started = 0.0, perf_counter()
            made.step(number)
            shares.append(spent[0] / (perf_counter() - started))
    finally:
        kind.tally, Balancer.update, module.reduce = originals  # type: ignore[method-assign]
    return statistics.median(shares[2:])


def where_time_goes(steps: int = 3, rows: int = 12) -> Table:
    made = trainer()
    made.step(1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for number in range(2, steps + 2):
            made.step(number)
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    table = Table(title="Where a step of ours goes, without lanes", title_justify="left")
    for heading in ("operation", "share", "ms a step", "calls a step"):
        table.add_column(
            heading, justify="left" if heading == "operation" else "right", no_wrap=True
        )
    for event in events[:rows]:
        own = event.self_cpu_time_total
        table.add_row(
            event.key[:48],
            f"{own / total:.1%}",
            f"{own / steps / 1e3:.1f}",
            f"{event.count / steps:.0f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores"
    )
    parser.add_argument(
        "--rounds", type=int, default=12, help="steps of each (default: %(default)s)"
    )
    options = parser.parse_args()
    console, chosen = Console(highlight=False, soft_wrap=True, width=110), config()
    tokens = chosen.batch_size * chosen.model.sequence_length
    console.print(
        f"torch {torch.__version__}, transformers {version('transformers')}, equipoise "
        f"{version('equipoise')}, "
        f"{options.threads} threads, float32, `small` with sigmoid gates, {tokens:,} tokens a step"
    )
    with OtherNeighbours() as neighbours:
        timings = compete(options.rounds, options.threads)
    table = Table()
    for heading in ("a training step", "median ms", "tokens/s", "x ours", "quartiles"):
        table.add_column(
            heading, justify="left" if heading == "a training step" else "right", no_wrap=True
        )
    for name, timing in timings.items():
        speed = f"{tokens / timing.median_ms * 1e3:,.0f}"
        ratio = timing.ratio
        table.add_row(
            name,
            f"{timing.median_ms:.0f}",
            speed,
            f"{ratio.median:.2f}",
            f"{ratio.lower:.2f} - {ratio.upper:.2f}",
        )
    console.print(table)
    torch.set_num_threads(options.threads)
    shares = {name: balancing_share(name, options.rounds) for name in BALANCERS}
    console.print(where_time_goes())
    doubt = (
        f" (others took {neighbours.share:.0%} of the machine: not to be trusted)"
        if neighbours.busy
        else ""
    )
    best = min(THEIRS, key=lambda name: timings[name].median_ms)
    speedup = timings[best].ratio.median
    passed = "[green]PASS[/]" if speedup >= TARGET else "[red]MISSED[/]"
    console.print(f"at least {TARGET}x as fast as {best}: {speedup:.2f}x: {passed}{doubt}")
    for name, share in shares.items():
        passed = "[green]PASS[/]" if share <= BALANCING_TARGET else "[red]MISSED[/]"
        console.print(
            f"balancing by {name} takes at most {BALANCING_TARGET:.0%} of a step: {share:.2%}: "
            f"{passed}{doubt}"
        )


if __name__ == "__main__":
    main()
