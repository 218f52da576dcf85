"""Fingerprint: notice that a resumed training has not been given back the experts and gates it was
saved with.

transformers 5 saves experts one by one, as the hub has them, and Trainer's `resume_from_checkpoint`
loads that file without joining them again: experts (and mixtral's gates) stay as they were, and
only missing keys are logged. It is issue 48805 of transformers, and still so in 5.22.2. A bias that
was learnt for other experts would be used without notice, so the sidecar keeps a sum of
each router's weights, and resuming compares.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.attach.find.zero_parts import in_parts

if TYPE_CHECKING:
    from equipoise.attach.count.balanced_router import BalancedRouter


@torch.no_grad()
def weight_fingerprint(routers: list[BalancedRouter]) -> str:
    """A sum over each router's gate and experts, in float64, by name. Sharded ones are left out: no
    rank has them whole.
    """
    sums = {}
    for router in routers:
        weights = [*router.found.gate.parameters(), *router.found.experts.parameters()]
        if not any(map(_is_elsewhere, weights)):
            # float8 has no sum
            summed = [
                weight.sum(dtype=torch.float64) for weight in weights if weight.element_size() > 1
            ]
            sums[router.name] = sum(map(float, summed))
    return json.dumps(sums)


def _is_elsewhere(weight: Tensor) -> bool:
    """Whether this rank does not have the weight whole."""
    return hasattr(weight, "full_tensor") or weight.is_meta or in_parts(weight)


def changed_routers(before: str, now: str) -> list[str]:
    """Names of routers whose weights are not those of the fingerprint `before`. The order of
    summation may differ by device.
    """
    known, found = json.loads(before), json.loads(now)
    return [
        name
        for name in known
        if name in found and not math.isclose(known[name], found[name], rel_tol=1e-9)
    ]
