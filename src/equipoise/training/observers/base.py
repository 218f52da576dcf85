"""Observer: the moments of a training at which something can be written down.

    resumed(step)      before the first step that is made; step is 0 for a new training
    stepped            after every step
    evaluated          after every evaluation
    saving(step)       before a checkpoint appears
    close              at the end, also after an error

A run that was killed and resumed leaves the files that an unbroken one would have left, except for
times. So an observer forgets in `resumed` what it saw of later steps, and has on the disk in
`saving` what it saw of earlier ones.
"""

from __future__ import annotations

from equipoise.training.evaluation import Validation
from equipoise.training.trainer import TrainingStep


class Observer:
    """The moments; each does nothing unless a subclass overrides it."""

    def resumed(self, step: int) -> None:
        """Training continues after `step`, 0 for a new one: forget what was seen of later steps."""

    def stepped(self, step: TrainingStep, seconds: float) -> None:
        """A step was made, in so many seconds."""

    def evaluated(self, step: int, measured: Validation) -> None:
        """The model as it is after `step` was evaluated."""

    def saving(self, step: int) -> None:
        """What was seen up to `step` must be on the disk before the checkpoint is."""

    def close(self) -> None:
        """Nothing more will be seen."""
