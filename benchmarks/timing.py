"""Timing on a machine that does other things too: contestants race in rounds, and only rounds are
compared.

A slow second of the machine slows a whole round, so the ratio of two contestants *within* a round
is steadier than either time. What is reported is the median of those ratios, with the quartiles
beside it as a sign of the noise that is left.

That does not help against a neighbour who holds a core all the time: each parallel operation then
waits for its slowest thread until the scheduler gives it a turn, so that many short operations seem
far slower than one long one. `Neighbours` measures that, so that a result can be thrown away. The
fastest rounds are the better witness then.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

BUSY = 0.05  # of the processors taken by others: from here on results are not to be trusted
WARM_UP = 3  # rounds not counted: first calls allocate, start threads and fill caches


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h
_INT_MAX = 2**31 - 1


class Ratio(NamedTuple):
    """How many times longer one contestant takes than another, over the rounds of a race."""

    median: float
    lower: float
    """the first quartile"""
    upper: float
    """the third quartile"""


@dataclass(frozen=True)
class Timing:
    """One contestant's times and its ratio to the race's first contestant."""

    seconds: tuple[float, ...]
    """one per round, in the order of the rounds"""
    ratio: Ratio
    """to the first contestant, which itself has 1"""

    @property
    def median_ms(self) -> float:
        return statistics.median(self.seconds) * 1e3

    @property
    def fastest_ms(self) -> float:
        return min(self.seconds) * 1e3

    def against(self, other: Timing) -> Ratio:
        """The ratio to any other contestant of the same race."""
        return _ratio(self.seconds, other.seconds)


class Neighbours:
    """What share of this machine's processors others took during a block. 0 where the system does
    not say (not Linux).

    Example:
        >>> with Neighbours() as neighbours:
        ...     timings = race({"sum": lambda: sum(range(1000))}, rounds=20)
        >>> neighbours.share < 1
        True
    """

    share = 0.0

    def __enter__(self) -> Neighbours:
        self._before = _others_seconds(), perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        taken, wall = (
            now - before for now, before in zip((_others_seconds(), perf_counter()), self._before)
        )
        self.share = max(0.0, taken / wall / (os.cpu_count() or 1))

    @property
    def busy(self) -> bool:
        return self.share > BUSY


def keep_memory() -> bool:
    """Let this process keep freed memory instead of handing it back to the system; False where
    malloc cannot be told.

    glibc returns large blocks when they are freed, or not, depending on what else was allocated
    before. Where it does, every temporary tensor pays for its pages anew, which can double a
    contestant's time in one run and not in the next.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _INT_MAX))


def race(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Time every contestant once per round, and compare each with the first.

    Rounds are shuffled, always alike: in a fixed order a contestant would always find the caches as
    the same neighbour left them. Garbage is collected before the race and not during it.

    Example:
        >>> timings = race({"bare": lambda: sum(range(1000)), "ours": lambda: sum(range(2000))},
            rounds=20)
        >>> timings["ours"].ratio.median > timings["bare"].ratio.median
        True
    """
    if rounds < 2:
        raise ValueError(f"{rounds} rounds have no median worth reporting: race at least 2")
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    order, shuffle = list(contestants), random.Random(0).shuffle
    with _garbage_left_alone():
        for n in range(WARM_UP + rounds):
            shuffle(order)
            for name in order:
                taken = _seconds(contestants[name])
                if n >= WARM_UP:
                    seconds[name].append(taken)
    first = next(iter(seconds.values()))
    return {name: Timing(tuple(each), _ratio(each, first)) for name, each in seconds.items()}


def _others_seconds() -> float:
    """Processor time since boot that was neither ours nor idle; a hypervisor's other guests count
    too.
    """
    try:
        _, user, nice, system, _, _, *interrupts_and_stolen = (
            Path("/proc/stat").read_text().splitlines()[0].split()[:9]
        )
    except OSError:
        return 0.0
    ticks = sum(map(int, (user, nice, system, *interrupts_and_stolen)))
    mine = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") - mine.user - mine.system


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    result = call()
    taken = perf_counter() - start
    del result  # held until here, so that freeing what is returned is in nobody's time
    return taken


def _ratio(ours: tuple[float, ...] | list[float], theirs: tuple[float, ...] | list[float]) -> Ratio:
    each = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    lower, median, upper = statistics.quantiles(each, n=4, method="inclusive")
    return Ratio(median, lower, upper)


@contextmanager
def _garbage_left_alone() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
