"""Batches: which sequences a step trains on, as a function of the step alone.

Tokens are cut into windows of S + 1, each beginning where the one before it has its last token:
every token is once an input and once a target. An epoch goes through all windows in an order that
follows from the seed and the number of the epoch; step n takes the next B of them. So there is
nothing to save but n, and a resumed run continues with the very batch that was next. Every rank
takes its own part of the batch: together they see what one process alone would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


class Batches:
    """The training batches of one rank.

    Args:
        tokens: the corpus.
        sequence_length: S.
        batch_size: B, sequences in a step over all ranks.
        seed: of the order.
        rank, ranks: which of how many equal parts to take.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        sequence_length: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.windows = num_windows(tokens, sequence_length)
        if batch_size % ranks:
            raise ValueError(
                f"a batch of {batch_size} sequences cannot be shared equally by {ranks} ranks"
            )
        self.tokens, self.sequence_length, self.batch_size, self.seed = (
            tokens,
            sequence_length,
            batch_size,
            seed,
        )
        share = batch_size // ranks
        self._mine = slice(rank * share, (rank + 1) * share)
        self._orders: dict[int, np.ndarray] = {}

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B / ranks, S) of a step, counted from 0."""
        places = range(step * self.batch_size, (step + 1) * self.batch_size)[self._mine]
        return cut_windows(
            self.tokens, [self._window(place) for place in places], self.sequence_length
        )

    def epoch(self, step: int) -> float:
        """How many times the corpus was read before this step."""
        return step * self.batch_size / self.windows

    def _window(self, place: int) -> int:
        epoch, place = divmod(place, self.windows)
        if epoch not in self._orders:
            # the one before is kept: a batch may span two
            self._orders = {n: order for n, order in self._orders.items() if n == epoch - 1}
            self._orders[epoch] = np.random.default_rng([self.seed, epoch]).permutation(
                self.windows
            )
        return int(self._orders[epoch][place])


def validation_windows(tokens: np.ndarray, sequence_length: int, number: int) -> list[int]:
    """Which windows validate: `number` of them spread evenly over the whole split, always the same;
    all of them for 0.

    Texts next to each other are alike, so the first windows would show the loss of a few files and
    not that of the split.
    """
    windows = num_windows(tokens, sequence_length, "validation")
    count = min(number or windows, windows)
    # the middles of equal parts
    return [(2 * n + 1) * windows // (2 * count) for n in range(count)]


def validation_batches(
    tokens: np.ndarray,
    sequence_length: int,
    batch_size: int,
    number: int,
    rank: int = 0,
    ranks: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's share of the windows that validate, at most batch_size at a time."""
    mine = validation_windows(tokens, sequence_length, number)[rank::ranks]
    for start in range(0, len(mine), batch_size):
        yield cut_windows(tokens, mine[start : start + batch_size], sequence_length)


def num_windows(tokens: np.ndarray, sequence_length: int, split: str = "training") -> int:
    """How many windows of S + 1 tokens there are; an error if there is none."""
    windows = (len(tokens) - 1) // sequence_length
    if windows < 1:
        raise ValueError(
            f"the corpus has {len(tokens)} {split} tokens, too few for one sequence of "
            f"{sequence_length} and its last target: take more text or a shorter sequence_length"
        )
    return windows


def cut_windows(
    tokens: np.ndarray, windows: list[int], sequence_length: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets (len(windows), S)."""
    S = sequence_length
    rows = torch.from_numpy(
        np.stack([tokens[w * S : w * S + S + 1] for w in windows]).astype(np.int64)
    )
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
