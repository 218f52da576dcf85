"""Parts: what a rule does to a step, one idea each. A method is a list of them (presets.py).

A part takes the step (E,) float32 and n, the number of this update as a float tensor, and returns
the step. Parts that remember keep what they remember in buffers, so that it is saved and resumed.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.balancing.mathematics.steps import (
    adagrad_step,
    centered_step,
    clipped_step,
    ema_step,
    momentum_step,
    sign_step,
    tanh_step,
)
from equipoise.balancing.precise import Precise
from equipoise.balancing.shift.step_sizes import StepSize, checked_rate


class Part(Precise):
    """One thing done to a step."""

    moves_when_balanced = False
    """whether a step of 0 may come out as another"""

    def build(self, num_experts: int) -> None:
        """Make the buffers this part needs; called once, by the balancer it belongs to."""

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        raise NotImplementedError


class Sign(Part):
    """-1, 0 or 1: how far a load is off does not matter, only on which side (the paper's eq. 3)."""

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        return sign_step(step)


class Tanh(Part):
    """tanh(sharpness * step): the sign far away, proportional nearby."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.sharpness = _check_positive(sharpness, "sharpness")

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        return tanh_step(step, self.sharpness)


class Scale(Part):
    """Times a number, or times a step size that depends on n."""

    def __init__(self, by: float | StepSize) -> None:
        super().__init__()
        self.by = by if callable(by) else checked_rate(by)

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        return step * (self.by(n) if callable(self.by) else self.by)

    def extra_repr(self) -> str:
        return "by=a step size of n" if callable(self.by) else f"by={self.by:g}"


class Center(Part):
    """Minus its mean: the paper's projection on the zero-sum space (Remark 15).

    It changes no routing, and stops drift.
    """

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        return centered_step(step)


class Clip(Part):
    """No coordinate moves by more than `most`."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = _check_positive(most, "most")

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        return clipped_step(step, self.most)


class _Remembering(Part):
    """A part that keeps one number per expert."""

    memory: Tensor

    def build(self, num_experts: int) -> None:
        if "memory" in self._buffers:
            raise ValueError(
                f"this {type(self).__name__} already belongs to a balancer: make one for each"
            )
        self.keep_buffer("memory", 0.0, (num_experts,))

    def remember(self, value: Tensor) -> Tensor:
        """Keep a value (E,) until the next update, and return it."""
        self.memory.copy_(value)
        return value


class EMA(_Remembering):
    """m <- decay m + (1 - decay) step, and the step is m."""

    moves_when_balanced = True

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = _check_fraction(decay, "decay")

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        return self.remember(ema_step(self.memory, step, self.decay))


class Momentum(_Remembering):
    """m <- decay m + step, and the step is m: heavy ball."""

    moves_when_balanced = True

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = _check_fraction(decay, "decay")

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        return self.remember(momentum_step(self.memory, step, self.decay))


class AdaGrad(_Remembering):
    """Divided by the root of the sum of its squares so far, per expert: its unit cancels."""

    def forward(self, step: Tensor, n: Tensor) -> Tensor:
        squares, step = adagrad_step(self.memory, step)
        self.remember(squares)
        return step


def _check_positive(value: float, name: str) -> float:
    """The same value, if it is above 0."""
    if not value > 0:
        raise ValueError(f"{name} must be positive, not {value}")
    return value


def _check_fraction(value: float, name: str) -> float:
    """The same value, if it is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), not {value}")
    return value
