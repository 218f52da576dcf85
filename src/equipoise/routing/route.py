"""Routing: each token takes the K experts it scores highest, after a balancer's shift.

The paper's primal update (eq. 8) is

    experts_i = TopKInd_k(scores_ik + shift_k)          gates_ik = scores_ik for the chosen k

The shift decides who is chosen and never enters a gate. route() is pure: it returns all that there
is to know of the choice and keeps nothing, so that recomputation under activation checkpointing
cannot count a token twice.

Shapes: T tokens, E experts, K choices, G groups.

Ties. Of equal shifted scores the lowest expert comes first, and of equal groups the lowest group,
on every device and by every back end (kernels/), as in the exact optimum. torch.topk promises
nothing there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.routing.checks import (
    require_choosable,
    require_finite,
    require_nonnegative,
    require_tensor,
    scores_are_checked,
)
from equipoise.routing.kernels.from_logits import choose_experts
from equipoise.routing.kernels.operators import rank_experts
from equipoise.routing.kernels.reference import add_shift
from equipoise.routing.score_functions import score_function


class Groups(NamedTuple):
    """Group-limited routing: experts lie in `number` equal groups, and a token may use only `keep`.

    They are its best ones: a group is worth the sum of its `best` highest experts (DeepSeek-V3: 2).

    Example:
        >>> scores = torch.tensor([[0.9, 0.0, 0.0, 0.1, 0.4, 0.4]])
        >>> equipoise.route(scores, 2, groups=equipoise.Groups(3, 1)).experts.tolist()
        [[0, 1]]
    """

    number: int
    keep: int
    best: int = 2


class Routing(NamedTuple):
    """What was chosen, and what balancers need so that top-K runs once.

    A NamedTuple, since reentrant activation checkpointing silently drops the gradients of a
    dataclass's tensors.

    Example:
        >>> scores, shift = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([-1.0, 0, 0])
        >>> routing = equipoise.route(scores, 2, shift=shift)
        >>> routing.experts.tolist(), routing.loads.tolist()
        ([[1, 2]], [0, 1, 1])
    """

    experts: Tensor
    """(T, K) int64: the chosen experts, highest shifted score first"""
    gates: Tensor
    """(T, K): the chosen experts' unshifted scores (renormalised and scaled when asked); carries
    gradients
    """
    loads: Tensor
    """(E,) int64: tokens each expert received, padding left out"""
    runner_up: Tensor | None
    """(T,) int64: the (K+1)-th choice among the allowed experts; means nothing where `margin` is
    infinite. None if not asked
    """
    margin: Tensor | None
    """(T,): how far the K-th choice lies above the runner-up in shifted score; inf where there is
    none. None if not asked
    """
    mask: Tensor | None
    """(T,) bool, True for padding; None where there is none"""
    allowed: Tensor | None
    """(T, G) bool: the groups each token could choose from; None without groups"""
    group_margin: Tensor | None
    """(T, G): how far a group's worth lies above the best one left out (if allowed) or below the
    worst one kept (if not)
    """


def route(
    scores: Tensor,
    top_k: int,
    *,
    shift: Tensor | None = None,
    choose_by: Tensor | None = None,
    groups: Groups | tuple[int, int] | None = None,
    mask: Tensor | None = None,
    renormalize: bool = False,
    scale: float = 1.0,
    runner_up: bool = True,
    score: str | None = None,
) -> Routing:
    """Send each token to the `top_k` experts with the highest `scores` + `shift`, or the highest
    `choose_by`; gates come from `scores`.

    Args:
        scores: (..., E) the affinity of each token to each expert. Leading dimensions are flattened
            to T tokens.
        top_k: K, the experts each token takes.
        shift: (E,) what is added to the scores before the choice, at least in float32.
        choose_by: (..., E) what to rank by in place of scores + shift. -inf forbids.
        groups: (number, keep), as in DeepSeek-V3: a group is worth the sum of its two highest
            `choose_by` (or of another number, `Groups.best`); the others are masked with -inf.
        mask: (...) bool, **True where a token is padding**. Padding is routed, but counted nowhere.
            Its scores must be finite all the same: a NaN gate would spread.
        renormalize: divide a token's gates by their sum.
        scale: multiply the gates (DeepSeek's routed_scaling_factor).
        runner_up: also find the (K+1)-th choice and its margin, which some balancers need.
        score: "softmax", "sigmoid" or "sqrt_softplus": `scores` are logits, and this is applied to
            them on the way. Without groups no scores of all experts are kept, nor their gradients.

    Example:
        >>> scores = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]])
        >>> route(scores, 1, shift=torch.tensor([-0.25, 0.0, 0.0])).experts.tolist()
        [[1], [0]]
    """
    groups = None if groups is None else Groups(*groups)
    check_shapes(scores, top_k, choose_by, groups, mask, shift)
    scores = scores.flatten(0, -2)
    mask = None if mask is None else mask.flatten()
    # a wrong name is an error here, and not inside an operator
    function = None if score is None else score_function(score)
    if function is not None and (groups is not None or choose_by is not None):
        scores, score = function(scores), None
    ranked = (scores if choose_by is None else choose_by.flatten(0, -2)).detach()
    limits = None
    if groups is not None:
        limits = _limit_to_groups(add_shift(ranked, shift), groups)
        ranked, shift = limits.open_to_choice, None

    choice = _rank_choices(ranked, shift, mask, top_k, runner_up, score, scores)
    experts, gates = choice.experts, choice.gates
    if scores_are_checked(scores):
        require_finite(scores.detach(), "scores" if score is None else "logits")
        require_choosable(lambda: add_shift(ranked, shift), choice.first, choice.kth, top_k)
    return Routing(
        experts,
        scale_gates(gates, renormalize=renormalize, scale=scale),
        choice.loads,
        choice.runner_up,
        choice.margin,
        mask,
        None if limits is None else limits.allowed,
        None if limits is None else limits.margin,
    )


def gather_gates(
    scores: Tensor, experts: Tensor, *, renormalize: bool, scale: float, may_be_empty: bool
) -> Tensor:
    """(T, K) gates of the experts (T, K), from the scores (T, E) of all; 0 where the place holds
    no expert, but E, if it may.
    """
    if may_be_empty:
        none = scores.shape[1]
        gates = scores.gather(1, experts.clamp_max(none - 1)).masked_fill(experts == none, 0.0)
    else:
        gates = scores.gather(1, experts)
    return scale_gates(gates, renormalize=renormalize, scale=scale)


def scale_gates(gates: Tensor, *, renormalize: bool, scale: float) -> Tensor:
    """(T, K) scores of the chosen experts, divided by their sum if asked, times `scale`."""
    if renormalize:
        if scores_are_checked(gates):
            require_nonnegative(gates.detach())
        # the smallest normal number: a token whose chosen scores are all 0 keeps gates of 0 and not
        # NaN
        gates = gates / gates.sum(-1, keepdim=True).clamp_min(torch.finfo(gates.dtype).tiny)
    return gates if scale == 1.0 else gates * scale


class _Choice(NamedTuple):
    """What one top-K found."""

    experts: Tensor
    gates: Tensor
    loads: Tensor
    first: Tensor
    """(T,): the highest value"""
    kth: Tensor
    """(T,): the lowest that was chosen"""
    runner_up: Tensor | None
    margin: Tensor | None


def _rank_choices(
    ranked: Tensor,
    shift: Tensor | None,
    mask: Tensor | None,
    top_k: int,
    runner_up: bool,
    score: str | None,
    scores: Tensor,
) -> _Choice:
    """One top-K, or one top-(K+1) where the runner-up is wanted; of logits where score is given."""
    wanted = min(top_k + runner_up, ranked.shape[1])
    if score is None:
        values, order, loads = rank_experts(ranked, shift, mask, top_k, wanted)
        gates = scores.gather(1, order[:, :top_k])
    else:
        gates, values, order, loads = choose_experts(scores, shift, mask, score, top_k, wanted)
    first, kth = values[:, 0], values[:, top_k - 1]
    experts = order[:, :top_k]
    if not runner_up:
        return _Choice(experts, gates, loads, first, kth, None, None)
    # all are chosen: there is no runner-up
    if wanted == top_k:
        infinite = torch.full_like(kth, torch.inf)
        return _Choice(experts, gates, loads, first, kth, order[:, -1], infinite)
    margin = kth - values[:, top_k]
    return _Choice(experts, gates, loads, first, kth, order[:, top_k], margin)


class _Limits(NamedTuple):
    """What groups leave open."""

    open_to_choice: Tensor
    """(T, E): -inf outside each token's best groups; with 0, a negative shifted score would lose to
    a forbidden expert
    """
    allowed: Tensor
    margin: Tensor


def _limit_to_groups(ranked: Tensor, groups: Groups) -> _Limits:
    """Each token's best groups, of equal ones the lowest."""
    by_group = ranked.unflatten(1, (groups.number, -1))
    worth = by_group.topk(min(groups.best, by_group.shape[2]), dim=2).values.sum(2)
    wanted = min(groups.keep + 1, groups.number)
    values, order, _ = rank_experts(worth, None, None, groups.keep, wanted)
    allowed = torch.zeros_like(worth, dtype=torch.bool).scatter_(1, order[:, : groups.keep], True)
    left_out = (
        values[:, groups.keep :]
        if groups.keep < groups.number
        else worth.new_full((len(worth), 1), -torch.inf)
    )
    margin = worth - torch.where(allowed, left_out, values[:, groups.keep - 1 : groups.keep])
    limited = by_group.masked_fill(~allowed.unsqueeze(2), -torch.inf).flatten(1)
    return _Limits(limited, allowed, margin)


def check_shapes(
    scores: Tensor,
    top_k: int,
    choose_by: Tensor | None,
    groups: Groups | None,
    mask: Tensor | None,
    shift: Tensor | None = None,
) -> None:
    """Refuse shapes, dtypes and sizes that cannot be routed; looks at no value."""
    given = {"scores": scores, "choose_by": choose_by, "mask": mask, "shift": shift}
    for name, value in given.items():
        if value is not None or name == "scores":
            require_tensor(value, name)
    if scores.dim() < 2 or not scores.is_floating_point():
        raise ValueError(
            f"scores must be floating point of shape (..., experts), not {_describe_tensor(scores)}"
        )
    num_experts = scores.shape[-1]
    if not 1 <= top_k <= num_experts:
        raise ValueError(
            f"top_k = {top_k} is impossible with {num_experts} experts: choose 1 to {num_experts}"
        )
    if choose_by is not None and not choose_by.is_floating_point():
        raise ValueError(f"choose_by must be floating point, not {choose_by.dtype}")
    if choose_by is not None and choose_by.shape != scores.shape:
        raise ValueError(
            f"choose_by has shape {tuple(choose_by.shape)}, scores {tuple(scores.shape)}: they "
            "must be the same"
        )
    if shift is not None:
        _check_shift(shift, num_experts, choose_by)
    if groups is not None:
        _check_groups(groups, num_experts, top_k)
    if mask is not None:
        check_mask(mask, scores.shape[:-1])


def _check_shift(shift: Tensor, num_experts: int, choose_by: Tensor | None) -> None:
    """Refuse a shift of another shape, and one beside what already says what to choose by."""
    if choose_by is not None:
        raise ValueError(
            "choose_by says what to choose by, so shift has no place: give one of them"
        )
    if shift.shape != (num_experts,) or not shift.is_floating_point():
        raise ValueError(
            f"shift must be floating point of shape ({num_experts},), not {_describe_tensor(shift)}"
        )


def _check_groups(groups: Groups, num_experts: int, top_k: int) -> None:
    """Refuse groups that experts do not divide into, or that hold too few experts."""
    if groups.number < 1 or num_experts % groups.number:
        raise ValueError(f"{num_experts} experts do not divide into {groups.number} equal groups")
    if not 1 <= groups.keep <= groups.number:
        raise ValueError(f"cannot keep {groups.keep} of {groups.number} groups")
    if groups.best < 1:
        raise ValueError(f"a group cannot be worth the sum of its {groups.best} highest experts")
    reach = groups.keep * (num_experts // groups.number)
    if reach < top_k:
        raise ValueError(
            f"{groups.keep} groups of {num_experts // groups.number} experts are {reach} experts, "
            f"fewer than top_k = {top_k}: keep more groups"
        )


def check_mask(mask: Tensor, tokens: torch.Size) -> None:
    """Refuse a mask that is not bool, or not of the tokens' shape."""
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be bool, True where a token is padding, not {mask.dtype}. An "
            "attention_mask says the opposite: pass mask=attention_mask == 0"
        )
    if mask.shape != tokens:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, the scores' tokens {tuple(tokens)}: they must be "
            "the same"
        )


def _describe_tensor(tensor: Tensor) -> str:
    """dtype and shape in words."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
