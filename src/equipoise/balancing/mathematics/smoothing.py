"""The settled shift: exponential smoothing whose gain follows from the shift's own movement.

settling.py derives it: if p is a random walk (variance q per update) plus noise (variance r), then
V(n) = mean (p_t - p_{t-n})^2 = 2 r + n q, and the best smoothing is at the steady gain of the
Kalman filter for s = q / r.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SHORT_LAG, LONG_LAG = 2, 4
"""updates over which movement is measured"""
_MEMORY = 0.9
_LEAST_GAIN = 0.1


class SmoothingState(NamedTuple):
    """What is remembered between updates."""

    recent: Tensor
    """(4, E): the last shifts, the newest first"""
    settled: Tensor
    """(E,)"""
    moved_short: Tensor
    """(): V(2), a sum over updates with falling weights"""
    moved_long: Tensor
    """(): V(4), likewise"""
    seen: Tensor
    """() int64: updates since it started"""


def smooth_shift(state: SmoothingState, before: Tensor, after: Tensor) -> SmoothingState:
    """An update took the shift from `before` to `after`, (E,) each.

    One that moved nothing (frozen, nothing counted) changes nothing here either. If `before` is not
    where the last update left the shift, it was written by hand, and smoothing restarts from there.
    """
    state = _start_unless((before == state.recent[0]).all(), state, before)
    moves = (before != after).any()
    # with fewer updates, both lags would measure the same movement
    enough = state.seen + 1 >= LONG_LAG
    short, long = (after - state.recent[lag - 1] for lag in (SHORT_LAG, LONG_LAG))
    moved_short = _next_movement(state.moved_short, short, moves, enough)
    moved_long = _next_movement(state.moved_long, long, moves, enough)
    recent = torch.cat((after.unsqueeze(0), state.recent[:-1]))
    return SmoothingState(
        torch.where(moves, recent, state.recent),
        state.settled.lerp(after, smoothing_gain(moved_short, moved_long) * moves),
        moved_short,
        moved_long,
        state.seen + moves,
    )


def smoothing_gain(moved_short: Tensor, moved_long: Tensor) -> Tensor:
    """g = 2 / (1 + sqrt(1 + 4 r / q)), at least 0.1; 1 where the movement is no noise."""
    drift = (moved_long - moved_short).clamp_min(0) / (LONG_LAG - SHORT_LAG)
    noise = (moved_short - SHORT_LAG * drift) / 2
    gain = 2 / (1 + (1 + 4 * noise / drift).sqrt())
    return torch.where(noise > 0, gain.clamp_min(_LEAST_GAIN), 1.0)


def _start_unless(known: Tensor, state: SmoothingState, shift: Tensor) -> SmoothingState:
    """The state as it is where `known`; else a new one that starts at `shift` (E,)."""
    return SmoothingState(
        torch.where(known, state.recent, shift),
        torch.where(known, state.settled, shift),
        state.moved_short * known,
        state.moved_long * known,
        state.seen * known,
    )


def _next_movement(moved: Tensor, move: Tensor, moves: Tensor, enough: Tensor) -> Tensor:
    """V(n) with one more move (E,) over n updates; as it was if nothing moves."""
    square = move.double().square().mean()
    added = _MEMORY * moved + torch.where(enough, square, 0.0)
    return torch.where(moves, added, moved).to(moved.dtype)
