"""reduce: sum the tallies of all layers over a process group, in one collective.

The group is the caller's: the ranks that hold *different* tokens (data and context parallel). Ranks
that hold the same tokens (tensor and expert parallel) must not be in it, or those tokens count
twice.

Counts travel as int32, which halves the traffic; a count that would not fit is refused, never
wrapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.routing.checks import number_if_readable, require_on_device
from equipoise.routing.tally import Tally

_INT32_MAX = 2**31 - 1
_STEPS_APART = 512  # steps travel modulo this, so that their squares fit int32 over 8,000 ranks


@overload
def reduce(
    tallies: Tally, group: dist.ProcessGroup | None = None, *, forwards: bool = False
) -> Tally: ...
@overload
def reduce(
    tallies: Mapping[str, Tally], group: dist.ProcessGroup | None = None, *, forwards: bool = False
) -> dict[str, Tally]: ...
@overload
def reduce(
    tallies: Sequence[Tally], group: dist.ProcessGroup | None = None, *, forwards: bool = False
) -> list[Tally]: ...
def reduce(
    tallies: Tally | Mapping[str, Tally] | Sequence[Tally],
    group: dist.ProcessGroup | None = None,
    *,
    forwards: bool = False,
) -> Tally | dict[str, Tally] | list[Tally]:
    """Sum tallies over the ranks of `group` (all ranks by default).

    The result has the form of what was given: a tally, a dict or a list. Layers may differ in their
    number of experts and in what they count, as long as every rank passes the same layers in the
    same order. Without an initialised process group the tallies are returned as they are.

    `Tally.forwards` stays this rank's own, since ranks may have run different numbers of
    micro-batches. Where experts of one group of devices serve all its ranks, pass `forwards=True`
    to sum them too: then every rank must have run as many.

    Args:
        tallies: of this rank.
        group: ranks that hold different tokens.
        forwards: sum `Tally.forwards` too.

    Example:
        >>> balancer, scores = equipoise.balancer("deepseek", 8, top_k=2), torch.rand(32, 8)
        >>> tally = balancer.tally(scores, balancer.route(scores))
        >>> equipoise.reduce({"layer 0": tally})["layer 0"] is tally  # one process: as it was
        True
    """
    if not dist.is_available() or not dist.is_initialized():
        return (
            tallies if isinstance(tallies, Tally) else _in_form_of(tallies, list(_as_list(tallies)))
        )
    layers = list(_as_list(tallies))
    if not layers:
        return _in_form_of(tallies, [])
    summed = _all_reduce([_to_wire(layer, forwards) for layer in layers], group)
    return _in_form_of(
        tallies,
        [
            _from_wire(layer, flat, forwards, group)
            for layer, flat in zip(layers, summed, strict=True)
        ],
    )


def reduce_across_devices(
    tallies: Mapping[str, Tally], group: dist.ProcessGroup | None = None
) -> dict[str, Tally]:
    """`reduce` for a model that is spread over several devices: one collective needs one device."""
    if len({tally.loads.device for tally in tallies.values()}) > 1:
        first = next(iter(tallies.values())).loads.device
        tallies = {name: tally.to(first) for name, tally in tallies.items()}
    return reduce(tallies, group)


def _all_reduce(flats: list[Tensor], group: dist.ProcessGroup | None) -> list[Tensor]:
    """Flat counts of all layers, summed over the ranks in one message."""
    devices = {flat.device for flat in flats}
    if len(devices) > 1:
        raise ValueError(
            f"the tallies of one reduce() must be on one device, not on {sorted(map(str, devices))}"
        )
    ranks = dist.get_world_size(group)
    if ranks < 1:
        raise ValueError("this rank is not in the group that reduce() was given")
    wire = torch.cat(flats)
    limit = _INT32_MAX // ranks
    # A rank that raised now would leave the others waiting: it sends a flag instead, and all raise
    # together.
    too_large = (wire.max() > limit).long().reshape(1)
    wire = torch.cat((wire.clamp_max(limit), too_large)).to(torch.int32)
    dist.all_reduce(wire, group=group)
    require_on_device(
        wire[-1] == 0,
        lambda: OverflowError(f"a count does not fit int32 over {ranks} ranks: update more often"),
    )
    return list(wire[:-1].long().split([flat.numel() for flat in flats]))


def _to_wire(tally: Tally, forwards: bool) -> Tensor:
    """A tally as one flat tensor: step, its square, loads, parts by name, forwards."""
    step = (tally.step % _STEPS_APART).reshape(1)
    pieces = [
        step,
        step.square(),
        tally.loads,
        *(tally.parts[name].flatten() for name in sorted(tally.parts)),
    ]
    return torch.cat(pieces + ([tally.forwards.flatten()] if forwards else []))


def _from_wire(
    tally: Tally, flat: Tensor, forwards: bool, group: dist.ProcessGroup | None
) -> Tally:
    """The tally of a flat sum; refused if the ranks were at different steps."""
    names = sorted(tally.parts)
    sizes = [1, 1, tally.loads.numel(), *(tally.parts[name].numel() for name in names)]
    steps, squares, loads, *rest = flat.split(
        sizes + ([tally.forwards.numel()] if forwards else [])
    )
    # numbers are all the same when their variance is 0: so every rank sees it if one of them
    # differs
    require_on_device(
        dist.get_world_size(group) * squares[0] == steps[0] ** 2,
        lambda: ValueError(
            "the ranks' balancers have made different numbers of updates (this rank's "
            f"{number_if_readable(tally.step)}): did a rank skip an update() or resume from "
            "another checkpoint?"
        ),
    )
    parts = {
        name: piece.view_as(tally.parts[name]) for name, piece in zip(names, rest, strict=False)
    }
    each = rest[-1].view_as(tally.forwards) if forwards else tally.forwards
    return Tally(loads=loads, forwards=each, step=tally.step, parts=parts)


def _as_list(tallies: Tally | Mapping[str, Tally] | Sequence[Tally]) -> Sequence[Tally]:
    """The tallies, in order."""
    if isinstance(tallies, Tally):
        return [tallies]
    return list(tallies.values()) if isinstance(tallies, Mapping) else tallies


def _in_form_of(
    question: Tally | Mapping[str, Tally] | Sequence[Tally], answer: list[Tally]
) -> Tally | dict[str, Tally] | list[Tally]:
    """The answer as a tally, a dict or a list, like what was given."""
    if isinstance(question, Tally):
        return answer[0]
    return dict(zip(question, answer, strict=True)) if isinstance(question, Mapping) else answer
