"""What a capacity would drop: choices beyond what an expert takes in one forward.

With a capacity factor c an expert takes at most

    C = ceil(c n / E)        n the choices of the forward, T K without padding

choices; c = 1 is the even share. Which of them stay is a convention, the order of arrival:

    position   tokens in their order: the last ones of a batch, the ends of sequences, suffer
    choice     all first choices in token order, then all second ones (GShard)
    score      by falling score, of equal ones the first token

How many are dropped is the same in all three, and follows from the loads alone. Each rank has a
capacity of its own where it dispatches its own tokens: then the loads must be those of each rank
(`sequence_loads`), since the sum over ranks hides what each drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from equipoise.routing.checks import check_choices
from equipoise.routing.metrics import checked_loads
from equipoise.routing.route import check_mask
from equipoise.storage.suggestions import did_you_mean

ArrivalOrder = Literal["position", "choice", "score"]


def dropped_share(loads: Tensor | Sequence[Any], capacity_factor: float) -> Tensor:
    """The share of choices that a capacity would drop, over all forwards: () float64.

    Args:
        loads: (E,) of one forward, or (..., E) of several (`Tally.forwards`). Each has a capacity
            of its own.
        capacity_factor: c above 0; an expert takes ceil(c n / E) of the n choices of its forward.

    Example:
        >>> float(dropped_share([6, 2, 2, 2], capacity_factor=1.0))
        0.25
    """
    loads = checked_loads(loads)
    capacity = _capacity(loads.sum(-1, keepdim=True), loads.shape[-1], capacity_factor)
    dropped, total = (loads - capacity).clamp_min(0).sum().double(), loads.sum().double()
    return torch.where(total > 0, dropped / total.clamp_min(1.0), 0.0)


def dropped_choices(
    experts: Tensor,
    num_experts: int,
    capacity_factor: float,
    *,
    by: ArrivalOrder = "position",
    scores: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Which choices of one forward a capacity would drop: (T, K) bool.

    Args:
        experts: (T, K) the chosen experts, best first: `Routing.experts`. The number E stands for
            no expert.
        num_experts: E.
        capacity_factor: c above 0; an expert takes ceil(c n / E) of the n choices.
        by: who comes first: "position", "choice" or "score".
        scores: (T, K) of the chosen experts, such as `Routing.gates`; by "score" only.
        mask: (T,) bool, True for padding, which takes no place and is not dropped.

    Example:
        >>> experts = torch.tensor([[0, 1], [0, 1], [0, 1], [1, 2]])
        >>> dropped_choices(experts, 4, capacity_factor=1.0).tolist()
        [[False, False], [False, False], [True, True], [True, False]]
    """
    check_choices(experts, num_experts)
    _check_order(by, scores, experts)
    if mask is not None:
        check_mask(mask, experts.shape[:1])
        experts = experts.masked_fill(mask.unsqueeze(1), num_experts)
    arrival = _arrival(experts, by, scores)
    # stable: within an expert the order of arrival stays
    queued, order = experts.flatten()[arrival].sort(stable=True)
    first = torch.searchsorted(queued, queued)
    place = torch.arange(len(queued), device=experts.device) - first
    capacity = _capacity((experts < num_experts).sum(), num_experts, capacity_factor)
    dropped = torch.zeros_like(queued, dtype=torch.bool)
    dropped[arrival[order]] = (place >= capacity) & (queued < num_experts)
    return dropped.view_as(experts)


def _capacity(choices: Tensor, num_experts: int, capacity_factor: float) -> Tensor:
    """ceil(c n / E) in the shape of the choices, float64 and whole."""
    if not 0 < capacity_factor < float("inf"):
        raise ValueError(f"capacity_factor must be above 0 and finite, not {capacity_factor}")
    share = choices.double() * capacity_factor / num_experts
    nearest = share.round()
    # 1.1 times 100 is a little above 110 in float64, and means 110
    whole = (share - nearest).abs() <= 1e-9 * nearest.clamp_min(1.0)
    return torch.where(whole, nearest, share.ceil())


def _arrival(experts: Tensor, by: ArrivalOrder, scores: Tensor | None) -> Tensor:
    """(T K,) the flat places of the choices, in the order in which experts take them."""
    places = torch.arange(experts.numel(), device=experts.device)
    if by == "choice":
        return places.view_as(experts).t().flatten()
    if scores is not None:
        return scores.detach().flatten().sort(descending=True, stable=True).indices
    return places


def _check_order(by: str, scores: Tensor | None, experts: Tensor) -> None:
    orders = get_args(ArrivalOrder)
    if by not in orders:
        raise ValueError(f"no order {by!r}{did_you_mean(by, orders)}: by is one of {orders}")
    if (by == "score") != (scores is not None):
        raise ValueError(
            f"by={by!r} {'needs' if scores is None else 'takes no'} scores: give them together "
            "with by='score', and only then"
        )
    if scores is not None and scores.shape != experts.shape:
        raise ValueError(
            f"scores have shape {tuple(scores.shape)}, the choices {tuple(experts.shape)}: pass "
            "those of the chosen experts, such as Routing.gates"
        )
