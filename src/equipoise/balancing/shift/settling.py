"""Settling: the shift to evaluate and ship, smoothed over as many updates as the shift's own
movement allows.

An iterate carries the noise of the last batches. An average has less noise but lags behind a router
that still learns. How much of the movement is noise is read from the movement itself: if p is a
random walk (variance q per update) plus noise (variance r) that is forgotten within two updates,
then

    V(n) = mean (p_t - p_{t-n})^2 = 2 r + n q
    so        q = (V(4) - V(2)) / 2,    r = V(2) - V(4) / 2,

with V averaged over experts and, with weights 1, 0.9, 0.81, ..., over updates. The best smoothing
of such a sequence is exponential, at the steady gain of the Kalman filter for s = q / r:

    settled += g (p - settled),        g = (sqrt(s^2 + 4 s) - s) / 2 = 2 / (1 + sqrt(1 + 4 / s)),

the second form being the one that loses no digits. It is kept above 0.1.

A shift that moves steadily one way has V(4) >= 2 V(2), hence r <= 0 and g = 1: it is its own
settled shift. Training never routes by the settled one. Figures are in docs/log/balancers.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.mathematics.smoothing import LONG_LAG, SmoothingState, smooth_shift
from equipoise.balancing.precise import Precise


class Settling(Precise):
    """The smoothed shift and what its gain follows from. A shift written by hand restarts it."""

    recent: Tensor
    settled: Tensor
    moved_short: Tensor
    moved_long: Tensor
    seen: Tensor

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.keep_buffer("recent", 0.0, (LONG_LAG, num_experts))
        self.keep_buffer("settled", 0.0, (num_experts,))
        self.keep_buffer("moved_short", 0.0)
        self.keep_buffer("moved_long", 0.0)
        self.keep_buffer("seen", 0, dtype=torch.int64)

    def of(self, shift: Tensor) -> Tensor:
        """The settled shift, if `shift` is where the last update left it; else `shift` itself."""
        return torch.where((shift == self.recent[0]).all(), self.settled, shift)

    def see(self, before: Tensor, after: Tensor) -> None:
        """An update took place. One that moved nothing (frozen, nothing counted) changes nothing
        here either.
        """
        state = SmoothingState(
            self.recent, self.settled, self.moved_short, self.moved_long, self.seen
        )
        for name, value in smooth_shift(state, before, after)._asdict().items():
            getattr(self, name).copy_(value)

    def upgrade_state(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        """A state saved before there was settling has none of these: it starts at the next
        update.
        """
        if not any(prefix + name in state_dict for name in self._buffers):
            for name in self._buffers:
                state_dict[prefix + name] = self.first_value(name)


def belongs_to_settling(name: str) -> bool:
    """Whether a tensor of a state is of a Settling.

    States saved before there was one lack it, and may be loaded.
    """
    return "settling" in name.split(".")
