"""Experts that a user gives for a replay, checked before a model takes them.

They come from other systems, which number layers and tokens in their own way. A wrong layer or a
shifted token would train a model on noise without a word, so whatever can be told is refused here,
with the name of the layer and the token.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.attach.replay.expert_choices import ExpertChoices, Rows, narrow_integers
from equipoise.storage.layer_names import layer_number
from equipoise.storage.suggestions import did_you_mean

LIVE = -1
"""stands in place of a token's experts where its router chooses itself"""

GivenExperts = ExpertChoices | Mapping[Any, ArrayLike] | ArrayLike
"""by layer's name or global index; or one array, (..., layers, K), as engines give it"""


class RouterShape(NamedTuple):
    """What the experts of one router must look like."""

    name: str
    num_experts: int
    top_k: int
    may_rest: bool = False
    """whether it routes tokens of pictures only, and none of text"""


def read_given(given: GivenExperts | Tensor, routers: Sequence[RouterShape]) -> dict[str, Rows]:
    """(T, K) of every router, in as few bytes as they need."""
    if isinstance(given, ExpertChoices):
        given = given.experts
    by_key = given if isinstance(given, Mapping) else _split_layers(_as_array(given), routers)
    by_name = _name_layers(by_key, routers)
    for router in routers:
        if router.may_rest:
            by_name.setdefault(router.name, np.empty((0, router.top_k), np.uint8))
    lacking = [router.name for router in routers if router.name not in by_name]
    if lacking:
        raise ValueError(
            f"no experts are given for {', '.join(lacking)}: give every layer, with {LIVE} for "
            "tokens that are to be routed live"
        )
    return {router.name: _checked_rows(by_name[router.name], router) for router in routers}


def _split_layers(array: Rows, routers: Sequence[RouterShape]) -> dict[int | str, Rows]:
    """One array of all layers, (..., L, K): L layers of the model, or its L routers."""
    if array.ndim < 3:
        raise ValueError(
            f"experts of shape {array.shape} are given, where (tokens, layers, K) is expected, or "
            "a dict by layer"
        )
    layers = array.shape[-2]
    if layers == len(routers):
        return {router.name: array[..., place, :] for place, router in enumerate(routers)}
    numbers = _numbers(routers)
    if layers <= max(numbers):
        raise ValueError(
            f"experts of {layers} layers are given, and this model has {len(routers)} routers, "
            f"the last in layer {max(numbers)}"
        )
    return {name: array[..., number, :] for number, name in numbers.items()}


def _numbers(routers: Sequence[RouterShape]) -> dict[int, str]:
    """The routers' names by global layer index."""
    numbered = [
        (layer_number(router.name), router.name) for router in routers if not router.may_rest
    ]
    found = {number: name for number, name in numbered if number is not None}
    if len(found) < len(numbered):
        names = ", ".join(router.name for router in routers)
        raise ValueError(f"these routers cannot be told apart by an index, use names: {names}")
    return found


def _name_layers(
    by_key: Mapping[Any, ArrayLike], routers: Sequence[RouterShape]
) -> dict[str, ArrayLike]:
    """The same by name. Dense layers have no router, and an index that is of none is refused."""
    names = [router.name for router in routers]
    found: dict[str, ArrayLike] = {}
    for key, experts in by_key.items():
        name = key if isinstance(key, str) else _numbers(routers).get(int(key))
        if name not in names:
            hint = did_you_mean(key, names) if isinstance(key, str) else ""
            raise ValueError(f"layer {key!r} has no router{hint}: they are {', '.join(names)}")
        if name in found:
            raise ValueError(f"the experts of {name} are given twice, by name and by index")
        found[name] = experts
    return found


def _as_array(experts: ArrayLike | Tensor) -> Rows:
    if isinstance(experts, Tensor):
        experts = experts.detach().cpu().numpy()
    return np.asarray(experts)


def _checked_rows(experts: ArrayLike | Tensor, router: RouterShape) -> Rows:
    array = _as_array(experts)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{router.name}: experts are integers, and {array.dtype} is given")
    if array.ndim < 2 or array.shape[-1] != router.top_k:
        raise ValueError(
            f"{router.name}: experts of shape {array.shape} are given, where (tokens, "
            f"{router.top_k}) is expected: a token takes {router.top_k}"
        )
    leading, rows = array.shape[:-1], array.reshape(-1, router.top_k)
    if rows.dtype == np.uint64:
        rows = rows.astype(np.int64)
    # two passes say of most recordings that no token needs a look
    some_live = bool(rows.size) and int(rows.min()) < 0
    if some_live or (rows.size and int(rows.max()) >= router.num_experts):
        _check_range(router, leading, rows)
    _refuse_token(
        router, leading, rows, _meets_twice(rows, some_live), "a token takes an expert once"
    )
    return narrow_integers(rows)


def _check_range(router: RouterShape, leading: tuple[int, ...], rows: Rows) -> None:
    outside = ((rows < LIVE) | (rows >= router.num_experts)).any(1)
    _refuse_token(router, leading, rows, outside, f"experts are 0 to {router.num_experts - 1}")
    live = rows == LIVE
    half = live.any(1) & ~live.all(1)
    _refuse_token(router, leading, rows, half, f"{LIVE} stands for all experts of a token or none")


def _meets_twice(rows: Rows, some_live: bool) -> Rows:
    """(T,) bool: whether a token has an expert twice."""
    twice = np.zeros(len(rows), bool)
    # for the few experts of a token faster than to sort them
    for first, second in itertools.combinations(np.ascontiguousarray(rows.T), 2):
        twice |= first == second
    # a token that is routed live has the same in all places
    return twice & (rows[:, 0] != LIVE) if some_live else twice


def _refuse_token(
    router: RouterShape, leading: tuple[int, ...], rows: Rows, wrong: ArrayLike, rule: str
) -> None:
    """Name the first of the tokens that are wrong."""
    wrong = np.asarray(wrong)
    if not wrong.any():
        return
    first = int(wrong.argmax())
    place = ", ".join(str(int(part)) for part in np.unravel_index(first, leading))
    raise ValueError(
        f"{router.name}, token {place}: experts {rows[first].tolist()} are given, but {rule} "
        f"({int(wrong.sum())} such tokens)"
    )


def to_device(rows: Rows, device: torch.device) -> Tensor:
    """(T, K) int64 on the device; only the small ones travel."""
    return torch.from_numpy(rows).to(device, non_blocking=True).long()
