"""Whether two models give the same logits, one of ours and one of transformers.

They add in another order, so logits differ in the last digits. Where a token's K-th and next expert
are equal to those digits, the two may take different ones: then this token's logits, and those of
the tokens that read it, differ by more, and neither model is wrong. So a token may differ if it
or one before it in its sequence is so close to a tie, and most tokens must not differ at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.model import DeepSeekMoE
from equipoise.training.scores import watch_scores

TOLERANCE = 1e-5
"""of a logit: absolute, or of the greatest logit where that is above 1"""
NEAR_TIE = 1e-5
"""between the scores of the K-th and the next expert"""
COMPARED_LENGTH = 512
"""tokens in a sequence at most: its logits are held twice"""


@dataclass(frozen=True)
class LogitsComparison:
    """What comparing two models has shown."""

    tokens: int
    """how many were compared"""
    difference: float
    """greatest difference of a logit, ties left out"""
    tied: int
    """tokens that differ by more, since experts are equal to the last digits there"""

    def __str__(self) -> str:
        ties = f", {self.tied} of them behind a tie of experts left out" if self.tied else ""
        return f"logits of {self.tokens:,} tokens differ by at most {self.difference:.1e}{ties}"


@torch.no_grad()
def compare_logits(ours: DeepSeekMoE, theirs: Any, tokens: Tensor) -> LogitsComparison:
    """Compare both models, in evaluation, on tokens (B, S).

    Raises:
        ValueError: if they are not the same model.
    """
    differing, tied, greatest = 0, 0, 0.0
    for row in tokens.split(1):
        off, most, close = _compare_sequence(ours, theirs, row)
        unexplained = off & ~close
        if unexplained.any():
            place = int(unexplained.argmax())
            raise ValueError(
                f"the model that was written is not the one that was trained: logits of token "
                f"{place} of a sequence differ by {float(most[place]):.1e}. Nothing was kept: "
                "please report it with the run's config.yaml and the version of transformers"
            )
        differing, tied = differing + int(off.sum()), tied + int((off & close).sum())
        greatest = max(greatest, float(most[~off].max(initial=0.0)))
    if differing > tokens.numel() // 2:
        raise ValueError(
            f"{differing} of {tokens.numel()} tokens are behind a tie between experts, so that the "
            "model that was written cannot be compared with the one that was trained, and nothing "
            "was kept: are the router's weights all equal, or hardly trained?"
        )
    return LogitsComparison(tokens.numel(), greatest, tied)


def _compare_sequence(
    ours: DeepSeekMoE, theirs: Any, row: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each token (S,): whether its logits differ, by how much, and whether it or one before it
    is close to a tie.
    """
    with watch_scores(ours) as scores:
        mine = ours(row).logits
    assert mine is not None
    other = theirs(row, use_cache=False).logits.to(mine)
    most = (mine - other).abs().amax(-1)[0]
    allowed = TOLERANCE * max(1.0, float(mine.abs().max()))
    # not ">": NaN differs from everything
    off = ~(most <= allowed)
    close = _near_ties(ours, scores).cummax(0).values.bool()
    return off.numpy(), most.numpy(), close.numpy()


def _near_ties(net: DeepSeekMoE, scores: dict[str, Tensor]) -> Tensor:
    """(T,) int: 1 where the K-th and the next expert are nearly equal in some layer."""
    gaps = []
    for name, layer in net.moe_layers.items():
        balancer = layer.router.balancer
        if balancer.top_k < balancer.num_experts:
            best = balancer.adjust(scores[name]).topk(balancer.top_k + 1).values
            gaps.append(best[:, -2] - best[:, -1])
    number = len(next(iter(scores.values())))
    nearest = torch.stack(gaps).amin(0) if gaps else torch.ones(number)
    return (nearest < NEAR_TIE).int()


def tokens_to_compare(text: np.ndarray, vocab_size: int, length: int, sequences: int = 4) -> Tensor:
    """(B, S): sequences of a text, evenly over it, and as many of random tokens, which reach parts
    of the vocabulary that a text leaves out.
    """
    length = min(length, COMPARED_LENGTH)
    rng = torch.Generator().manual_seed(0)
    rows = [torch.randint(vocab_size, (sequences, length), generator=rng)]
    windows = len(text) // length
    for window in np.linspace(0, windows, min(sequences, windows), endpoint=False, dtype=int):
        cut = text[window * length : (window + 1) * length].astype(np.int64)
        rows.append(torch.from_numpy(cut)[None])
    return torch.cat(rows)
