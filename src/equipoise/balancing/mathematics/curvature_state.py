"""What curvature remembers between updates, and what it learns of a batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CurvatureState(NamedTuple):
    """What is remembered between updates, float32."""

    bandwidth: Tensor
    """(): a token hesitates if its margin is at most this"""
    graph: Tensor
    """(E, E): sum over batches, with falling weights, of w = (W + W^T) / (2 h T)"""
    seen: Tensor
    """(E,): hesitating tokens of each expert, likewise"""
    batches: Tensor
    """(): the weights themselves"""
    gain: Tensor
    """(): the lasting gain, for a batch of the usual size"""
    usual: Tensor
    """(): squared gaps over what independent tokens would show, as usual"""
    usual_tokens: Tensor
    """(): tokens of a batch, as usual"""
    doubt: Tensor
    """(E,): variance of each shift in units of a usual batch's noise, once it has moved"""
    trail_gap: Tensor
    trail_step: Tensor
    """(E,) each: decaying sums of earlier gaps and Newton steps"""
    flipped: Tensor
    """(E,): -1, 0 or 1, where the last step moved an expert by a flip; 0 where it did not"""
    flip_trust: Tensor
    """(E,): how far flip moves are believed, the whole way from 1 on; at most 16"""
    width: Tensor
    """(E,): what the histogram of flip distances reaches to"""


class BatchEvidence(NamedTuple):
    """What a batch showed."""

    gap: Tensor
    """(E,) float64: (L - A) / T"""
    want: Tensor
    """(E,) float64: L / T"""
    tokens: Tensor
    """(): T"""
    pairs: Tensor
    """(E, E) int64: tokens that hesitate between two experts"""
    flips: Tensor
    """(E, B + 2) int64: the histogram of flip distances, of a sample of the tokens"""
    flip_want: Tensor
    """(E,) float64: the target loads of that sample"""
    flip_slack: float
    """how many times wider than needed the next histogram reaches"""
    experts_per_price: int = 1
    """above 1, tokens are counted so many times (per_device.py); pairs are of real ones"""


def remember(state: CurvatureState, **changes: Tensor) -> CurvatureState:
    """The state with changes, each rounded to the dtype it is kept in before it is used again."""
    return state._replace(
        **{name: value.to(getattr(state, name).dtype) for name, value in changes.items()}
    )
