"""ReplayReport: how much of a replay was replayed."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.attach.replay.given_rows import GivenRows, Share


class ReplayReport:
    """How many tokens and choices of a replay were routed live; grows while the block runs."""

    def __init__(self, given: Mapping[str, GivenRows]) -> None:
        self._given = given

    @property
    def live_share_by_layer(self) -> dict[str, float]:
        """The share of tokens, without padding, that a router chose for itself (-1)."""
        return {name: float(rows.live_share) for name, rows in self._given.items()}

    @property
    def live_share(self) -> float:
        """The same over all layers together."""
        return float(sum((rows.live_share for rows in self._given.values()), Share(0, 0)))

    @property
    def refused_share_by_layer(self) -> dict[str, float]:
        """The share of given choices, without padding and -1, that were below the floor: there a
        router chose for itself, too.
        """
        return {name: float(rows.refused_share) for name, rows in self._given.items()}

    @property
    def refused_share(self) -> float:
        """The same over all layers together."""
        return float(sum((rows.refused_share for rows in self._given.values()), Share(0, 0)))
