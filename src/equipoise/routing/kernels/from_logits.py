"""The choice from logits: the score function is applied on the way, and no (T, E) scores are kept.

    choose_experts       gates, and what `rank_experts` gives, of score(logits) + shift

What autograd keeps is (T, K) gates and experts, and the logits unless the scores are sigmoids; what
goes back is the same as through the score function and a gather. On the CPU blocks of tokens that
fit a cache are scored by torch and ranked by the kernel. torch's sigmoid rounds the last numbers of
a tensor otherwise than those in its middle, so that scores may differ in the last place from those
of the whole. The GPU's kernel has an exp and a log of its own, with the same consequence.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.routing.kernels import operators
from equipoise.routing.kernels.backends import backend_for
from equipoise.routing.score_functions import LEAST_SOFTPLUS, score_function

_BLOCK_SCORES = 1 << 20
"""a block of scores is 4 MB: smaller ones wait for threads more often (docs/log/routing.md)"""

operators.library.define(
    "choose_experts(Tensor logits, Tensor? shift, Tensor? mask, str score, int top_k, int wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


class Chosen(NamedTuple):
    """The gates, and the three results of `rank_experts`."""

    gates: Tensor
    values: Tensor
    experts: Tensor
    loads: Tensor


def choose_experts(
    logits: Tensor,
    shift: Tensor | None,
    mask: Tensor | None,
    score: str,
    top_k: int,
    wanted: int,
) -> Chosen:
    """The `wanted` best experts by score(logits) + shift, and the gates of the first top_k.

    Args:
        logits: (T, E) floating point; scored in float32.
        shift: (E,), or None. mask: (T,) bool, True for padding, or None.
        score: "softmax", "sigmoid" or "sqrt_softplus".

    Returns:
        Gates (T, top_k) float32, unshifted, with gradients; values, experts and loads as of
        `rank_experts`.
    """
    return Chosen(*torch.ops.equipoise.choose_experts(logits, shift, mask, score, top_k, wanted))


def _choose(
    logits: Tensor, shift: Tensor | None, mask: Tensor | None, score: str, top_k: int, wanted: int
) -> tuple[Tensor, ...]:
    name = backend_for(logits, wanted, shift)
    if name == "triton":
        from equipoise.routing.kernels.gpu.launch import choose_on_gpu

        return choose_on_gpu(logits, shift, mask, score, top_k, wanted)
    if name == "processor":
        return _choose_by_blocks(logits, shift, mask, score, top_k, wanted)
    return _choose_whole(logits, shift, mask, score, top_k, wanted)


def _choose_whole(
    logits: Tensor, shift: Tensor | None, mask: Tensor | None, score: str, top_k: int, wanted: int
) -> tuple[Tensor, ...]:
    """All scores at once: the slow twin."""
    scores = score_function(score)(logits)
    values, experts, loads = operators.rank_experts(scores, shift, mask, top_k, wanted)
    return scores.gather(1, experts[:, :top_k]), values, experts, loads


def _choose_by_blocks(
    logits: Tensor, shift: Tensor | None, mask: Tensor | None, score: str, top_k: int, wanted: int
) -> tuple[Tensor, ...]:
    """One block after the other, each scored, ranked and forgotten."""
    block = max(1, _BLOCK_SCORES // logits.shape[1])
    if len(logits) <= block:
        return _choose_whole(logits, shift, mask, score, top_k, wanted)
    masks = repeat(None) if mask is None else mask.split(block)
    parts = [
        _choose_whole(part, shift, padding, score, top_k, wanted)
        for part, padding in zip(logits.split(block), masks)
    ]
    gates, values, experts, loads = zip(*parts)
    return torch.cat(gates), torch.cat(values), torch.cat(experts), torch.stack(loads).sum(0)


def _shapes(
    logits: Tensor, shift: Tensor | None, mask: Tensor | None, score: str, top_k: int, wanted: int
) -> tuple[Tensor, ...]:
    tokens, num_experts = logits.shape
    kind = torch.float32 if shift is None else torch.promote_types(torch.float32, shift.dtype)
    return (
        logits.new_empty((tokens, top_k), dtype=torch.float32),
        logits.new_empty((tokens, wanted), dtype=kind),
        logits.new_empty((tokens, wanted), dtype=torch.int64),
        logits.new_empty((num_experts,), dtype=torch.int64),
    )


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, _, _, score, top_k, _ = inputs
    gates, values, experts, loads = output
    ctx.score, ctx.num_experts, ctx.kind = score, logits.shape[1], logits.dtype
    # a sigmoid's slope follows from its value
    kept = None if score == "sigmoid" else logits
    ctx.save_for_backward(kept, gates, experts[:, :top_k])
    ctx.mark_non_differentiable(values, experts, loads)


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    logits, gates, experts = ctx.saved_tensors
    if ctx.score == "softmax":
        # d s_k / d z_l = s_k (1[k = l] - s_l)
        weighted = gradient * gates
        whole = logits.float().softmax(-1) * -weighted.sum(-1, keepdim=True)
        back = whole.scatter_add(1, experts, weighted)
    else:
        slope = _slopes(ctx.score, logits, gates, experts)
        back = gradient.new_zeros(len(gates), ctx.num_experts)
        back = back.scatter(1, experts, gradient * slope)
    return back.to(ctx.kind), None, None, None, None, None


def _slopes(score: str, logits: Tensor | None, gates: Tensor, experts: Tensor) -> Tensor:
    """d score / d logit of the chosen experts, (T, K)."""
    if logits is None:
        return gates * (1 - gates)
    chosen = logits.gather(1, experts).float()
    # below the least softplus the score is constant
    return torch.where(gates * gates > LEAST_SOFTPLUS, chosen.sigmoid() / (2 * gates), 0.0)


operators.library.impl("choose_experts", _choose, "CompositeExplicitAutograd")
torch.library.register_fake("equipoise::choose_experts", _shapes, lib=operators.library)
torch.library.register_autograd(
    "equipoise::choose_experts",
    _backward,
    setup_context=_keep_for_backward,
    lib=operators.library,
)
