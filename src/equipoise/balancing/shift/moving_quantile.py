"""Even loads within a sequence, without a loss: moving quantile balancing (Su 2026, kexue 11760).

A shift makes loads even over a batch; a sequence of one topic may still flood an expert. So along a
sequence every expert's own quantile is followed, and taken off its scores:

    h_i = d h_(i-1) + (1 - d) onehot(bin of s_i)       100 bins on [0, 1], d = 0.99
    beta_i = the (1 - K/E)-quantile of h_i
    experts_i = top-K of s_i - strength beta_i + shift

An expert that scores high all along a sequence has a high quantile there, and gives way. The global
shift is moved by any rule, which sees s - strength beta as the scores. Gates are s itself.

What the formula leaves open is settled so: h_0 = 0, so that the first token's quantile is its own
bin; the quantile is linear within a bin; with unequal targets the level is 1 - K times an expert's
target share. beta_i contains token i: that is causal, since s_i is known when i is routed. Padding
is in no histogram, and is routed by the shift alone.

It costs E updates of a bin for a token, and E x bins float64 numbers of state for a sequence
(51 kB at E = 64) while it goes on; training keeps nothing from one forward to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.balancing.precise import Precise
from equipoise.balancing.target import Target
from equipoise.routing.kernels.moving_quantiles import (
    SequenceLayout,
    moving_quantiles,
    next_places,
)


class SequenceState(NamedTuple):
    """What sequences have behind them, to go on from: `Dual.route_next`."""

    masses: Tensor
    """(B, E, bins) float64"""
    places: Tensor
    """(B,) int64"""

    def select(self, sequences: Tensor) -> SequenceState:
        """The states of some of them, or of some twice, by their numbers: for beam search."""
        return SequenceState(self.masses[sequences], self.places[sequences])


class MovingQuantile(Precise):
    """The part of a balancer that evens loads within sequences: `Dual.within_sequences`.

    Args:
        strength: lambda, how much of the quantile is taken off. 0 changes nothing; at 0.3 the
            author's loss was unchanged, at 1 it rose by 0.06.
        decay: what a token's weight is multiplied by at every later one.
        bins: of a histogram.
        reach: bins lie on [0, reach]; scores beyond are in the last one. Finer bins brought nothing
            even to softmax scores of 64 experts.
        sequence_length: where scores come flat, (T, E): how many successive tokens are a sequence.

    Example:
        >>> balancer = equipoise.balancer("curvature", 8, top_k=2)
        >>> balancer = balancer.within_sequences(MovingQuantile(0.3))
        >>> prompt, token = torch.rand(1, 20, 8), torch.rand(1, 1, 8)
        >>> routing, state = balancer.route_next(prompt)
        >>> routing, state = balancer.route_next(token, state)
        >>> whole = balancer.route(torch.cat((prompt, token), 1))
        >>> torch.equal(whole.experts[-1:], routing.experts)
        True
    """

    levels: Tensor

    def __init__(
        self,
        strength: float = 0.3,
        *,
        decay: float = 0.99,
        bins: int = 100,
        reach: float = 1.0,
        sequence_length: int | None = None,
    ) -> None:
        super().__init__()
        _check_range(strength, "strength", 0 <= strength < float("inf"), "a number, 0 or more")
        _check_range(decay, "decay", 0 < decay < 1, "between 0 and 1")
        _check_range(bins, "bins", bins == int(bins) and bins >= 2, "a whole number, at least 2")
        _check_range(reach, "reach", 0 < reach < float("inf"), "a number above 0")
        length = 1 if sequence_length is None else sequence_length
        _check_range(length, "sequence_length", length == int(length) and length >= 1, "at least 1")
        self.strength, self.decay, self.bins, self.reach = strength, decay, bins, reach
        self.sequence_length = sequence_length

    def build(self, target: Target) -> None:
        """Learn which quantile is wanted; called once, by the balancer it belongs to."""
        if "levels" in self._buffers:
            raise ValueError("this MovingQuantile already belongs to a balancer: make one for each")
        shares = torch.tensor(target.shares, dtype=torch.float64, device="cpu")
        levels = (1 - target.top_k * shares).clamp_min(0)
        shape = (len(shares),)
        self.keep_buffer("levels", levels, shape, dtype=torch.float64, persistent=False)

    def new_state(self, sequences: int) -> SequenceState:
        """Of sequences that have not begun."""
        levels = self.levels
        return SequenceState(
            levels.new_zeros((sequences, len(levels), self.bins)),
            torch.zeros(sequences, dtype=torch.int64, device=levels.device),
        )

    def lowered_scores(
        self, scores: Tensor, mask: Tensor | None = None, sequences: Tensor | None = None
    ) -> Tensor:
        """s - strength beta, (..., E), at least float32, of sequences that begin here."""
        layout = lay_out_sequences(scores, mask, sequences, self.sequence_length)
        places = torch.zeros_like(layout.lengths)
        nothing = self.new_state(0).masses.to(scores.device)
        return self._lower(scores, layout, places, nothing)[0]

    def lowered_next(
        self, scores: Tensor, state: SequenceState, mask: Tensor | None = None
    ) -> tuple[Tensor, SequenceState]:
        """The same of sequences that go on, (B, S, E), and their state after it."""
        if scores.dim() != 3 or len(scores) != len(state.places):
            raise ValueError(
                f"these are states of {len(state.places)} sequences, which need scores of shape "
                f"({len(state.places)}, length, experts), not {tuple(scores.shape)}"
            )
        layout = lay_out_sequences(scores, mask)
        places, masses = (each.to(scores.device) for each in (state.places, state.masses))
        lowered, masses = self._lower(scores, layout, places, masses)
        return lowered, SequenceState(masses, next_places(places, layout.lengths, self.decay))

    def _lower(
        self, scores: Tensor, layout: SequenceLayout, places: Tensor, masses: Tensor
    ) -> tuple[Tensor, Tensor]:
        scores = scores.detach()
        quantiles, masses = moving_quantiles(
            scores.flatten(0, -2), layout, places, masses, self.levels.to(scores.device),
            decay=self.decay, reach=self.reach, bins=self.bins,
        )  # fmt: skip
        return scores - self.strength * quantiles.view(scores.shape), masses

    def extra_repr(self) -> str:
        return f"strength={self.strength:g}, decay={self.decay:g}, bins={self.bins}"


def lay_out_sequences(
    scores: Tensor,
    mask: Tensor | None = None,
    sequences: Tensor | None = None,
    sequence_length: int | None = None,
) -> SequenceLayout:
    """Which tokens are whose; padding is nobody's.

    Args:
        scores: (..., E).
        mask: (...) bool, True where a token is padding.
        sequences: (...) the number of each token's sequence: those of one number are a sequence, in
            the order in which they stand. Makes a GPU wait. By default the first of the leading
            dimensions.
        sequence_length: of flat scores.
    """
    tokens = scores[..., 0].numel()
    if sequences is not None:
        number, longest, owner = _given_sequences(scores, sequences)
    else:
        number = _number_of_sequences(scores, sequence_length)
        longest = tokens // max(number, 1)
        owner = torch.arange(number, device=scores.device).repeat_interleave(longest)
    order = torch.arange(tokens, device=scores.device)
    real = torch.ones_like(owner) if mask is None else (~mask.flatten()).long()
    if sequences is not None or mask is not None:
        order = (2 * owner + 1 - real).argsort(stable=True)
    none = torch.zeros(number, dtype=torch.int64, device=scores.device)
    sizes = none.scatter_add(0, owner, torch.ones_like(owner))
    return SequenceLayout(order, sizes.cumsum(0) - sizes, none.scatter_add(0, owner, real), longest)


def _number_of_sequences(scores: Tensor, sequence_length: int | None) -> int:
    """How many sequences there are, by the scores' shape."""
    if scores.dim() > 2:
        return scores.shape[0]
    if sequence_length is None:
        raise ValueError(
            "a balancer that evens loads within sequences must know them: give scores of shape "
            "(batch, length, experts), pass sequences=, or set sequence_length where scores come "
            "flat"
        )
    if len(scores) % sequence_length:
        raise ValueError(
            f"{len(scores)} tokens do not divide into sequences of sequence_length = "
            f"{sequence_length}: pass sequences="
        )
    return len(scores) // sequence_length


def _given_sequences(scores: Tensor, sequences: Tensor) -> tuple[int, int, Tensor]:
    """How many sequences are named, the size of the greatest, and each token's, counted from 0."""
    if sequences.shape != scores.shape[:-1]:
        raise ValueError(
            f"sequences has shape {tuple(sequences.shape)}, the tokens {tuple(scores.shape[:-1])}"
        )
    names, owner, sizes = sequences.flatten().unique(return_inverse=True, return_counts=True)
    return len(names), int(sizes.max()) if len(names) else 0, owner


def _check_range(value: float, name: str, inside: bool, wanted: str) -> None:
    if not inside:
        raise ValueError(f"{name} must be {wanted}, not {value!r}")
