"""A simulator that dispatches tokens one by one, in plain Python: the slow twin of the measures.

Nothing here is an array. Devices work through their queues token by token while the others wait;
an expert has as many places as its capacity, and a choice that finds none is dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil


@dataclass
class Forward:
    """One forward: what its tokens chose, and whether they are padding."""

    choices: list[list[int]]
    padding: list[bool]
    num_experts: int

    def arrivals(self):
        """(token, choice, expert) of everything that is dispatched, in token order."""
        for token, experts in enumerate(self.choices):
            for choice, expert in enumerate(experts):
                if not self.padding[token] and expert < self.num_experts:
                    yield token, choice, expert


@dataclass
class Cluster:
    """Devices that wait for each other at the end of every forward."""

    device_of: list[int]
    worked: Counter = field(default_factory=Counter)
    elapsed: int = 0

    def run(self, forward: Forward) -> list[int]:
        """The tokens of each device; the clock ticks until the last queue is empty."""
        queues = Counter(dict.fromkeys(self.device_of, 0))
        for _, _, expert in forward.arrivals():
            queues[self.device_of[expert]] += 1
        loads = [queues[device] for device in sorted(queues)]
        while any(queues.values()):
            self.elapsed += 1
            for device in queues:
                if queues[device]:
                    queues[device] -= 1
                    self.worked[device] += 1
        return loads

    @property
    def idle(self) -> Fraction:
        """The share of device time without work."""
        offered = self.elapsed * len(set(self.device_of))
        return 1 - Fraction(sum(self.worked.values()), offered) if offered else Fraction(0)


def sequence_counts(forward: Forward, sequence_of: list[int]) -> dict[int, Counter]:
    """The experts' loads in each sequence."""
    found: dict[int, Counter] = {sequence: Counter() for sequence in sequence_of}
    for token, _, expert in forward.arrivals():
        found[sequence_of[token]][expert] += 1
    return found


def places_of(forward: Forward, factor: Fraction) -> int:
    """Places of every expert, from exact fractions."""
    return ceil(factor * len(list(forward.arrivals())) / forward.num_experts)


def dropped(forward: Forward, factor: Fraction, by: str, scores=None) -> set[tuple[int, int]]:
    """(token, choice) of every choice that found its expert full."""
    free = Counter({expert: places_of(forward, factor) for expert in range(forward.num_experts)})
    queue = list(forward.arrivals())
    if by == "choice":
        queue = [
            each for rank in range(len(forward.choices[0])) for each in queue if each[1] == rank
        ]
    lost = set()
    while queue:
        token, choice, expert = queue.pop(0) if by != "score" else _pop_highest(queue, scores)
        if free[expert]:
            free[expert] -= 1
        else:
            lost.add((token, choice))
    return lost


def _pop_highest(queue, scores):
    """The arrival with the highest score; of equal ones the first."""
    best = 0
    for place, (token, choice, _) in enumerate(queue):
        if scores[token][choice] > scores[queue[best][0]][queue[best][1]]:
            best = place
    return queue.pop(best)
