"""Tokens per second of routing, tallying and updating, per rule, beside the time it takes to read
the scores once.

One thread, processor time and not the clock's, so that other jobs disturb little. All rules in the
same shuffled rounds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

import equipoise
from equipoise.arena.demo import CAUSAL

SIZES = ((16_384, 64, 6), (16_384, 256, 8))
ROUNDS = 9


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def meet(rule: equipoise.Balancer, scores: torch.Tensor) -> None:
    rule.update(rule.tally(scores, rule.route(scores)))


def main() -> None:
    torch.set_num_threads(1)
    for T, E, K in SIZES:
        scores = (torch.randn(T, E) + 0.7 * torch.randn(E)).softmax(-1)
        works: dict[str, Callable[[], object]] = {"reading the scores once": scores.sum}
        for name in CAUSAL:
            rule = equipoise.balancer(name, E, top_k=K)
            works[name] = partial(meet, rule, scores)
        times: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(ROUNDS + 2):
            for name in random.sample(list(works), len(works)):
                taken = seconds(works[name])
                if turn >= 2:  # the first two warm up
                    times[name].append(taken)
        print(f"\n| T={T:,}, E={E}, K={K} | ms | million tokens/s | x reading |\n|---|---|---|---|")
        limit = statistics.median(times["reading the scores once"])
        for name, taken in times.items():
            middle = statistics.median(taken)
            print(
                f"| {name} | {1e3 * middle:.2f} | {T / middle / 1e6:.2f} | {middle / limit:.0f} |"
            )


if __name__ == "__main__":
    main()
