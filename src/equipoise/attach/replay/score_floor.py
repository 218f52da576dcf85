"""The floor of a replay: a given expert that the router itself scores far too low is not taken.

A trainer may have moved far from the engine that chose. An expert the trainer now gives next to no
score brings a gate of nearly 0 and a gradient of nearly none, so its place goes to the router's own
choice. With a floor r, a given expert k of token i is taken where

    score_ik >= r min(score_ij over the K experts j that the router itself would take)

in scores without the shift. The places of the others are filled with the router's own experts in
its own order, those left out that the token takes already. r = 0 takes whatever is given, and r = 1
only what the router scores as high as its own. Where logits are ranked, their exponentials are
compared.

Whatever the floor, a token whose given scores add up to 0 in float32 is routed live: gates that are
divided by their sum would be NaN, or their gradients.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_NOT_NEGATIVE = ("softmax", "sigmoid", "sqrt_softplus")
"""score functions whose values can be compared by their ratio"""

_VANISHING = 1e-30
"""a sum of scores below it is nearly 0: its inverse times a gradient overflows float32"""


class FloorOutcome(NamedTuple):
    """What the floor left of the experts that were given."""

    experts: Tensor
    """(T, K): those that are taken"""
    refused: Tensor
    """(T, K) bool: given experts below the floor"""


def check_floor(floor: float) -> float:
    """Refuse what is no ratio."""
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor <= 1:
        raise ValueError(
            f"floor is a share of the score of the router's own weakest choice, 0 to 1, not {floor}"
        )
    return float(floor)


def apply_floor(
    given: Tensor, own: Tensor, scores: Tensor, floor: float, score: str | None
) -> FloorOutcome:
    """Take the given experts above the floor, and the router's own in place of the others.

    Args:
        given: (T, K) int64, without -1; own: (T, K), the router's, best first.
        scores: (T, E) without the shift.
        floor: r above.
        score: name of the score function; None where it is not known, then a negative value says
            that the scores are logits.
    """
    scores = scores.detach().to(torch.promote_types(scores.dtype, torch.float32))
    weakest = scores.gather(1, own).amin(1, keepdim=True)
    least = floor * weakest
    if score not in _NOT_NEGATIVE:
        in_logits = weakest + (math.log(floor) if floor else -math.inf)
        least = torch.where((scores < 0).any(), in_logits, least)
    refused = scores.gather(1, given) < least
    return FloorOutcome(_fill_places(given, own, refused), refused)


def can_vanish(score: str | None) -> bool:
    """Whether scores may add up to 0."""
    return score in _NOT_NEGATIVE


def replace_vanishing(given: Tensor, own: Tensor, scores: Tensor) -> FloorOutcome:
    """Take the router's own experts where the scores of the given ones add up to 0."""
    sums = scores.detach().gather(1, given).float().sum(1, keepdim=True)
    vanishing = sums < _VANISHING
    return FloorOutcome(torch.where(vanishing, own, given), vanishing.expand_as(given))


def _fill_places(given: Tensor, own: Tensor, refused: Tensor) -> Tensor:
    """(T, K): `own`, in order and without what is kept, in the places of the refused."""
    kept = given.masked_fill(refused, -1)
    is_kept = (own.unsqueeze(2) == kept.unsqueeze(1)).any(2)
    # those still free come first; there are as many as places, since a token keeps what it keeps
    free = own.gather(1, is_kept.to(torch.uint8).argsort(dim=1, stable=True))
    place = (refused.long().cumsum(1) - 1).clamp_min(0)
    return torch.where(refused, free.gather(1, place), given)
