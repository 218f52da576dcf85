"""Which tokens of a batch are padding, from what a model is called with.

A router sees hidden states and no mask. The masks of transformers say it in several ways:

    (B, S)            0 is padding; other numbers may name the documents of a packed row
    (B, H, S, S)      who looks at whom, as bools or as what is added (0 or very low). A padding
                      token is one that may not even look at itself
    BlockMask         the same, as a function (flex attention)
    a dict            one of these for each kind of attention layer
    none              a flattened batch (position_ids or cu_seq_lens): all tokens are real, but for
                      those with which TRL fills the end of a row (pad_to_multiple_of)

Everything stays on the device: nothing waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def padding_of_mask(mask: object) -> Tensor | None:
    """(T,) bool, True for padding; None where the mask says nothing. Refuses what it cannot
    read.
    """
    if mask is None:
        return None
    if isinstance(mask, Mapping):
        return _padding_of_masks(mask)
    if isinstance(mask, Tensor):
        if mask.dim() == 2:
            return (mask == 0).flatten()
        if mask.dim() in (3, 4) and mask.shape[-1] == mask.shape[-2]:
            return _padding_of_pairs(mask)
    elif hasattr(mask, "mask_mod"):
        return _padding_of_function(mask)
    raise ValueError(
        f"attention_mask is {_describe(mask)}: which tokens are padding cannot be told from it, "
        "so they would be counted. Pass a mask of shape (batch, sequence) or (batch, heads, "
        "sequence, sequence), a dict of such masks, or none at all for a batch without padding"
    )


def padding_of_positions(positions: object, tokens: object, pad_token: int | None) -> Tensor | None:
    """(T,) bool: the end of a flattened row that TRL filled up, with its pad token and position 0.

    A document of one token at the end of a row has position 0 too, but is another token.
    """
    if not isinstance(positions, Tensor) or not isinstance(tokens, Tensor) or pad_token is None:
        return None
    if positions.dim() != 2 or positions.shape != tokens.shape:
        return None
    filling = (positions == 0) & (tokens == pad_token)
    # only the last run of a row
    return filling.flip(1).long().cumprod(1).flip(1).bool().flatten()


def _padding_of_masks(masks: Mapping[str, object]) -> Tensor | None:
    """A token is padding in all kinds of attention, or in none: the first that says it is taken."""
    for mask in masks.values():
        padding = padding_of_mask(mask)
        if padding is not None:
            return padding
    return None


def _padding_of_pairs(mask: Tensor) -> Tensor:
    """From a mask of (query, key): floats are added to scores, anything else is a yes or no."""
    itself = mask.diagonal(dim1=-2, dim2=-1)
    seen = itself == 0 if itself.is_floating_point() else itself != 0
    while seen.dim() > 2:
        seen = seen.any(1)
    return ~seen.flatten()


def _padding_of_function(mask: Any) -> Tensor:
    """From a BlockMask, whose function says whether query i of a row may look at key j."""
    rows, _, length, _ = mask.shape
    device = mask.kv_num_blocks.device
    head = torch.zeros((), dtype=torch.long, device=device)

    def looks_at_itself(row: Tensor, place: Tensor) -> Tensor:
        return mask.mask_mod(row, head, place, place)

    by_place = torch.vmap(looks_at_itself, in_dims=(None, 0))
    seen = torch.vmap(by_place, in_dims=(0, None))(
        torch.arange(rows, device=device), torch.arange(length, device=device)
    )
    return ~seen.flatten()


def _describe(mask: object) -> str:
    if isinstance(mask, Tensor):
        return f"a tensor of shape {tuple(mask.shape)}"
    return f"a {type(mask).__name__}"
