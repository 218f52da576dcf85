"""An operator of torch: each expert's quantile of the scores along a sequence, older tokens fading.

After its i-th token a sequence has, for every expert, the histogram

    h_i = d h_(i-1) + (1 - d) onehot(bin of s_i),    h_0 = 0,    d = 0.99

over equal bins on [0, reach]; scores outside fall into the first and the last. The quantile at a
level q is where q of its mass lies below, linear within its bin.

**In whole numbers.** A quantile does not change when all masses are multiplied by the same number.
So instead of fading h at every token, a token weighs more the later it comes: token r of a window
of R weighs round(2^f d^-r), and at the end of a window all masses are multiplied by d^R, down to
whole numbers. f is the greatest with which all sums stay below 2^53: then they are exact in
float64, in any order. So a sequence that is cut anywhere, and continued with the masses kept, has
the same quantiles to the last bit, on every device and by every back end. Against the formula in
real numbers a mass is wrong by less than 2^(1 - f) of a token's weight for each window; f is 44 at
d = 0.99.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.routing.kernels.backends import backend_for

_LONGEST_WINDOW = 64
# weights grow to at most 2^8 within a window
_GROWTH_BITS = 8
_library = torch.library.Library("equipoise", "FRAGMENT")
_library.define(
    "moving_quantiles(Tensor scores, Tensor tokens, Tensor starts, Tensor lengths, int longest,"
    " Tensor places, Tensor masses, Tensor levels, float decay, float reach, int bins)"
    " -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


class SequenceLayout(NamedTuple):
    """Which tokens of a flat batch are whose."""

    tokens: Tensor
    """(T,) int64: the tokens of the first sequence, then of the second, ..."""
    starts: Tensor
    """(S,) int64: where in `tokens` each sequence begins"""
    lengths: Tensor
    """(S,) int64: how many tokens of each are to be followed, from its start"""
    longest: int
    """at least the greatest of them"""


@dataclass(frozen=True)
class Fading:
    """What tokens weigh under a decay, in whole numbers."""

    weights: tuple[float, ...]
    """of the tokens of a window"""
    fade: float
    """what all masses are multiplied by at its end"""


@cache
def fading(decay: float) -> Fading:
    """The weights of a decay in (0, 1)."""
    per_token = -math.log2(decay)
    window = max(1, min(_LONGEST_WINDOW, int(_GROWTH_BITS / per_token)))
    bits = math.floor(52 - (window - 1) * per_token + math.log2(1 - decay))
    weights = tuple(float(round(2.0**bits * decay**-r)) for r in range(window))
    return Fading(weights, decay**window)


def moving_quantiles(
    scores: Tensor,
    layout: SequenceLayout,
    places: Tensor,
    masses: Tensor,
    levels: Tensor,
    *,
    decay: float,
    reach: float,
    bins: int,
) -> tuple[Tensor, Tensor]:
    """The quantiles after each token, (T, E) float32, and the masses after the last one.

    Args:
        scores: (T, E) floating point.
        layout: of the tokens. One that is in no sequence has quantiles of 0.
        places: (S,) int64, how many tokens of the present window each sequence has had.
        masses: (S, E, bins) float64 so far; or (0, E, bins) where all sequences begin and none goes
            on: then none are returned either.
        levels: (E,) float64.
        decay, reach, bins: of the histograms.
    """
    return torch.ops.equipoise.moving_quantiles(
        scores, *layout, places, masses, levels, decay, reach, bins
    )


def next_places(places: Tensor, lengths: Tensor, decay: float) -> Tensor:
    """(S,): `places` after so many tokens. A full window ends when the next token comes."""
    window = len(fading(decay).weights)
    after = (places + lengths - 1) % window + 1
    return torch.where(lengths > 0, after, places)


def _moving_quantiles(
    scores: Tensor,
    tokens: Tensor,
    starts: Tensor,
    lengths: Tensor,
    longest: int,
    places: Tensor,
    masses: Tensor,
    levels: Tensor,
    decay: float,
    reach: float,
    bins: int,
) -> tuple[Tensor, Tensor]:
    layout = SequenceLayout(tokens, starts, lengths, longest)
    scores = scores.detach().float()
    follow = _on_processor if backend_for(scores, 1) == "processor" else quantiles_by_windows
    return follow(scores, layout, places, masses, levels, fading(decay), reach, bins)


def _on_processor(
    scores: Tensor,
    layout: SequenceLayout,
    places: Tensor,
    masses: Tensor,
    levels: Tensor,
    fading: Fading,
    reach: float,
    bins: int,
) -> tuple[Tensor, Tensor]:
    # numba takes seconds to load: only where it runs
    from equipoise.selection.moving_quantiles import follow_quantiles

    kept = masses.clone(memory_format=torch.contiguous_format)
    found = follow_quantiles(
        scores.t().contiguous().numpy(),
        layout.tokens.contiguous().numpy(),
        layout.starts.contiguous().numpy(),
        layout.lengths.contiguous().numpy(),
        places.contiguous().numpy(),
        torch.tensor(fading.weights, dtype=torch.float64).numpy(),
        fading.fade,
        levels.contiguous().numpy(),
        reach,
        bins,
        kept.numpy(),
        threads=torch.get_num_threads(),
    )
    return torch.from_numpy(found).t().contiguous(), kept


def quantiles_by_windows(
    scores: Tensor,
    layout: SequenceLayout,
    places: Tensor,
    masses: Tensor,
    levels: Tensor,
    fading: Fading,
    reach: float,
    bins: int,
) -> tuple[Tensor, Tensor]:
    """The same in plain torch, on any device: a window of all sequences at once.

    It needs S R E bins float64 numbers of memory, several times.
    """
    weights = torch.tensor(fading.weights, dtype=torch.float64, device=scores.device)
    window, shape = len(weights), (len(layout.starts), scores.shape[1], bins)
    state = masses.clone() if masses.numel() else masses.new_zeros(shape)
    where = scores * torch.tensor(bins / reach, dtype=torch.float32, device=scores.device)
    binned = torch.where(where > 0, where, 0.0).clamp_max(bins - 1).long()
    found = torch.zeros_like(scores)
    steps = torch.arange(window, device=scores.device)
    # the first window may be begun, so that there is one more than the tokens alone would fill
    for number in range(layout.longest // window + 2 if len(scores) else 0):
        ordinal = number * window - places.unsqueeze(1) + steps
        real = (ordinal >= 0) & (ordinal < layout.lengths.unsqueeze(1))
        place = (layout.starts.unsqueeze(1) + ordinal).clamp(0, len(scores) - 1)
        token = layout.tokens[place]
        if number:
            faded = (state * fading.fade).floor()
            state = torch.where(real.any(1)[:, None, None], faded, state)
        added = weights.unsqueeze(1) * real.unsqueeze(2)
        along = state.new_zeros((shape[0], window, *shape[1:]))
        bin_of_token = binned[token].unsqueeze(3)
        along.scatter_(3, bin_of_token, added.unsqueeze(3).expand(bin_of_token.shape))
        along = along.cumsum(1) + state.unsqueeze(1)
        values = _quantiles_of(along, levels, reach / bins)
        # tokens that are not real write to the place of one more, which is cut off
        target = torch.where(real, token, len(scores)).flatten()
        padded = torch.cat((found, found[:1]))
        found = padded.index_copy(0, target, values.flatten(0, 1).float())[:-1]
        state = along[:, -1]
    return found, state if masses.numel() else masses.clone()


def _quantiles_of(masses: Tensor, levels: Tensor, width: float) -> Tensor:
    """(..., E) float64 of masses (..., E, bins)."""
    reached = masses.cumsum(-1)
    wanted = (levels * reached[..., -1]).unsqueeze(-1)
    at = (reached < wanted).sum(-1, keepdim=True)
    mass = masses.gather(-1, at)
    below = reached.gather(-1, at) - mass
    inside = torch.where(mass > 0, (wanted - below) / mass, 0.0)
    return ((at + inside) * width).squeeze(-1)


_library.impl("moving_quantiles", _moving_quantiles, "CompositeExplicitAutograd")


@torch.library.register_fake("equipoise::moving_quantiles", lib=_library)
def _shapes(
    scores: Tensor,
    tokens: Tensor,
    starts: Tensor,
    lengths: Tensor,
    longest: int,
    places: Tensor,
    masses: Tensor,
    levels: Tensor,
    decay: float,
    reach: float,
    bins: int,
) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape, dtype=torch.float32), torch.empty_like(masses)
