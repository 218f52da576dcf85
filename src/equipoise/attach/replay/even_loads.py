"""EvenLoads: experts for benchmarks, as even as whole numbers allow, whatever the router says.

A speed that is measured with the routers of an untrained model measures their imbalance. Experts in
turn (0, 1, 2, ...) are no remedy: they lie device by device, so a batch that ends early in a round
leaves whole devices idle. Here consecutive choices go to different devices:

    E = 6, 3 devices:   0 2 4 1 3 5   0 2 4 1 3 5 ...

A token takes K consecutive ones, which differ since K <= E. So after any number of choices the
loads of two experts differ by 1 at most, and so do those of two devices.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from equipoise.attach.replay.expert_choices import Rows, narrow_integers
from equipoise.attach.replay.given_experts import RouterShape
from equipoise.attach.replay.given_rows import GivenRows


@dataclasses.dataclass(frozen=True)
class EvenLoads:
    """`balancing.replay(EvenLoads(devices=8))`: even loads in every forward of the block.

    Args:
        devices: that share the experts of a layer, each with as many consecutive ones.
    """

    devices: int = 1

    def rows_of(self, router: RouterShape) -> GivenRows:
        """What one router takes."""
        if self.devices < 1 or router.num_experts % self.devices:
            raise ValueError(
                f"{router.name}: {router.num_experts} experts cannot be shared evenly by "
                f"{self.devices} devices"
            )
        order = np.arange(router.num_experts).reshape(self.devices, -1).T.ravel()
        return EvenRows(order, router.top_k)


class EvenRows(GivenRows):
    """Rows without end, made as they are asked for."""

    def __init__(self, order: Rows, top_k: int) -> None:
        super().__init__(np.empty((0, top_k), np.uint8))
        self._order = narrow_integers(order)
        self._next = 0
        """place in the order; a forward begins where the one before it ended"""

    def take_next(self, name: str, tokens: int) -> Rows:
        top_k = self.rows.shape[1]
        places = (self._next + np.arange(tokens * top_k)) % len(self._order)
        self._next = (self._next + tokens * top_k) % len(self._order)
        return self._order[places].reshape(tokens, top_k)
