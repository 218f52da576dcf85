"""What a log file receives where no terminal is: a line at the start, for each evaluation, and
every 30 seconds, so that the log of a batch system is never empty.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from equipoise.results.run import summarise_levels
from equipoise.training.evaluation import Validation
from equipoise.training.observers.base import Observer
from equipoise.training.trainer import TrainingStep

SECONDS_BETWEEN_LINES = 30.0


class LogLines(Observer):
    """Lines on the error stream: what `train --json` prints stays JSON.

    Args:
        steps: of the whole training.
        tokens_per_step: for the speed.
        every: seconds between two lines about steps.
        clock: seconds that only grow; tests bring their own.
    """

    def __init__(
        self,
        steps: int,
        tokens_per_step: int,
        *,
        every: float = SECONDS_BETWEEN_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps, self.tokens_per_step, self.every = steps, tokens_per_step, every
        self._clock = clock
        self._broken = False

    def resumed(self, step: int) -> None:
        begins = f"continues after step {step} of" if step else "begins:"
        self._print(f"training {begins} {self.steps} steps")
        self._last_step, self._last_time = step, self._clock()

    def stepped(self, step: TrainingStep, seconds: float) -> None:
        passed = self._clock() - self._last_time
        if passed < self.every:
            return
        # of all that passed since the last line, evaluations and checkpoints included
        seconds_per_step = passed / (step.number - self._last_step)
        level = summarise_levels([layer.levels for layer in step.layers])["imbalance"]
        left = describe_duration(seconds_per_step * (self.steps - step.number))
        self._print(
            f"step {step.number} of {self.steps}: loss {step.loss:.4f}, imbalance {level:.4f}, "
            f"{self.tokens_per_step / seconds_per_step:,.0f} tokens/s, {left} left"
        )
        self._last_step, self._last_time = step.number, self._clock()

    def evaluated(self, step: int, measured: Validation) -> None:
        self._print(evaluation_line(step, measured))

    def _print(self, line: str) -> None:
        """Whoever reads the lines may leave, as `head` does: the training continues without them.
        sys.stderr is asked for anew, since programs replace it.
        """
        if self._broken:
            return
        try:
            print(line, file=sys.stderr, flush=True)
        except (OSError, ValueError):
            self._broken = True


def evaluation_line(step: int, measured: Validation) -> str:
    """What is said of an evaluation, on a terminal and in a log."""
    level = summarise_levels(measured.layers)["imbalance"]
    chance = "" if measured.floor is None else f" (chance alone {measured.floor:.4f})"
    return f"step {step}: validation loss {measured.loss:.4f}, imbalance {level:.4f}{chance}"


def describe_duration(seconds: float) -> str:
    """In the unit a person would use: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
