"""KeptForwards: what the forwards of one router took, until no backward pass can recompute them.

Which of them a recomputation repeats is told by what the router itself ranks first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.attach.replay.expert_choices import Rows

_LEAST_ALIKE = 0.9
"""share of tokens whose own choice a recomputation repeats; below it is of another forward. Not 1,
since kernels that add in any order may flip a near tie
"""


class Replayed(NamedTuple):
    """What one forward was given, and on which terms."""

    rows: Rows
    """(T, K) on the host"""
    tally_own: bool = False
    """whether it counts, by what the router itself would have chosen"""
    floor: float = 0.0
    """see score_floor.py"""
    settled: Tensor | None = None
    """(T, K) int16 on the device: what was taken in the end, where there is a floor"""

    @property
    def may_be_live(self) -> bool:
        """Whether a token may be -1, which no unsigned number is."""
        return self.rows.dtype.kind != "u"

    def same_as(self, other: Replayed) -> bool:
        """Whether both take the same experts."""
        if self.settled is not None and other.settled is not None:
            return torch.equal(self.settled, other.settled)
        return self.floor == other.floor and np.array_equal(self.rows, other.rows)


class KeptForward(NamedTuple):
    """A forward whose backward pass may recompute it."""

    own: Tensor
    """(T, K) int16 on the device: what the router itself ranked first"""
    replayed: Replayed | None
    """None where it routed live"""

    def same_experts(self, other: KeptForward) -> bool:
        """Whether both take the same experts."""
        if self.replayed is None or other.replayed is None:
            return self.replayed is other.replayed
        return self.replayed.same_as(other.replayed)


class KeptForwards:
    """Those of one router."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kept: list[KeptForward] = []
        self._lost_replay = False
        """whether a forward that was replayed is kept no more"""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, forward: KeptForward) -> None:
        """Keep one more."""
        self._kept.append(forward)

    def clear(self) -> None:
        """No forward that was run will be recomputed."""
        self._lost_replay |= any(kept.replayed is not None for kept in self._kept)
        self._kept.clear()

    def find_recomputed(self, own: Tensor) -> Replayed | None:
        """What the forward took that is being recomputed, where the router ranks `own` first."""
        replayed = self._lost_replay or any(kept.replayed is not None for kept in self._kept)
        if not replayed or not len(own):
            return None
        nearest = self._most_alike(own)
        if not all(kept.same_experts(nearest[0]) for kept in nearest):
            raise RuntimeError(
                f"{self.name} is recomputed in a backward pass, and {len(nearest)} forwards of the "
                "same tokens took different experts: run the backward pass of each before the "
                "next forward, with a step or a drop between them"
            )
        return nearest[-1].replayed

    def _most_alike(self, own: Tensor) -> list[KeptForward]:
        """The forwards that ranked their tokens most as this recomputation does."""
        alike = [kept for kept in self._kept if kept.own.shape == own.shape]
        mine = own.to(torch.int16)
        # one wait for the device, however many there are
        shares = [(kept.own == mine).all(1).float().mean() for kept in alike]
        found = torch.stack(shares).tolist() if shares else []
        best = max(found, default=0.0)
        if best < _LEAST_ALIKE:
            raise RuntimeError(
                f"{self.name} is recomputed in a backward pass, and no forward since the last step "
                f"ranked its {len(own)} tokens so (the nearest: {best:.0%} of them). Replay and "
                "gradient checkpointing go together if the backward pass of a forward runs before "
                "the step of the balancer and before the weights change"
            )
        return [kept for kept, share in zip(alike, found) if share == best]
