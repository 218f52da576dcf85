"""Tally: what a balancer must know of a batch, in whole numbers that add up.

Over micro-batches tallies add by +, over ranks by `reduce`. Since every part is a sum over tokens,
the tally of a batch is the same however the batch was cut, and so is every step taken from it:
gradient accumulation and data parallelism are right for all balancers at once.

That holds only while the shift (and bin edges, bandwidths) stand still. So a tally carries the step
of the balancer that took it, and tallies of different steps refuse to add.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from equipoise.routing.checks import number_if_readable, require_on_device


@dataclass(frozen=True, eq=False)
class Tally:
    """Whole numbers about a batch, all int64.

    `sum(tallies)` works, and so does `tally_a + tally_b`.

    Example:
        >>> balancer = equipoise.balancer("deepseek", 4, top_k=1)
        >>> batches = torch.eye(4), torch.eye(4)[:2]
        >>> sum(balancer.tally(each, balancer.route(each)) for each in batches).loads.tolist()
        [2, 2, 1, 1]
    """

    loads: Tensor
    """(E,): tokens each expert received"""
    forwards: Tensor
    """(M, E): the loads of each forward apart, since devices wait for each other in every forward
    and sums hide that
    """
    step: Tensor
    """(): how many updates the balancer had made when this was counted"""
    parts: dict[str, Tensor] = field(default_factory=dict)
    """whatever else this balancer counts (a histogram, boundary pairs): tensors that add up"""

    def __add__(self, other: Tally | Literal[0]) -> Tally:
        if isinstance(other, int) and other == 0:
            return self  # the start of sum()
        if not isinstance(other, Tally):
            return NotImplemented
        self._check_alike(other)
        return Tally(
            loads=self.loads + other.loads,
            forwards=torch.cat((self.forwards, other.forwards)),
            step=self.step,
            parts={name: part + other.parts[name] for name, part in self.parts.items()},
        )

    __radd__ = __add__

    def to(self, device: torch.device | str) -> Tally:
        """The same tally on another device."""
        return Tally(
            self.loads.to(device),
            self.forwards.to(device),
            self.step.to(device),
            {name: part.to(device) for name, part in self.parts.items()},
        )

    def _check_alike(self, other: Tally) -> None:
        mine, theirs = _part_shapes(self), _part_shapes(other)
        if mine != theirs:
            raise ValueError(
                f"these tallies count different things and cannot add: {mine} and {theirs}"
            )
        require_on_device(
            self.step == other.step,
            lambda: ValueError(
                f"these tallies were taken at steps {number_if_readable(self.step)} and "
                f"{number_if_readable(other.step)} of their balancer, under different shifts, and "
                "cannot add: start a new sum after every update()"
            ),
        )


# torch.export and torch.utils._pytree then see its tensors: adjust, route and tally can be exported
torch.export.register_dataclass(Tally, serialized_type_name="equipoise.Tally")


def _part_shapes(tally: Tally) -> dict[str, tuple[int, ...]]:
    """The shape of everything that is counted, by name."""
    named = {"loads": tally.loads, **tally.parts}
    return {name: tuple(part.shape) for name, part in named.items()}
