"""ReplaysExperts: what a Balancing can do with somebody else's experts."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.replay.expert_choices import ExpertChoices
from equipoise.attach.replay.forced_loads import Force, ForcedLoads, given_or_forced
from equipoise.attach.replay.given_experts import GivenExperts
from equipoise.attach.replay.replay_report import ReplayReport
from equipoise.attach.replay.router_exchanges import anticipate_choices, exchanges_of
from equipoise.attach.replay.sessions import ReplayTerms, recorded_experts, replayed_experts


class ReplaysExperts:
    """Records and replays the experts of its routers."""

    routers: list[BalancedRouter]

    @abstractmethod
    def _check_attached(self) -> None:
        """Refuse where it was detached from its model."""

    def record_experts(self, margins: bool = False) -> AbstractContextManager[ExpertChoices]:
        """Keep the experts that every token takes in the forwards of a block (docs/replay.md)."""
        self._check_attached()
        return recorded_experts(exchanges_of(self.routers), margins)

    def replay(
        self,
        experts: GivenExperts | ForcedLoads | None = None,
        *,
        force: Force = None,
        devices: int = 1,
        tally: str = "none",
        floor: float = 0.0,
    ) -> AbstractContextManager[ReplayReport]:
        """Let the routers take these experts in the forwards of a block, with gates from their own
        scores (docs/replay.md).

        Args:
            experts: (T, K) by layer, or (..., layers, K); -1 routes a token live.
            force: "balanced", or a weight for each expert, in place of `experts`.
            devices: that share the experts of a layer, for `force="balanced"`.
            tally: "none": the shift rests; "own": count what the routers would have chosen.
            floor: a given expert is taken only where its own score is at least this share of that
                of the weakest expert the router itself would take; its place is routed live.
        """
        self._check_attached()
        given = given_or_forced(experts, force, devices)
        return replayed_experts(exchanges_of(self.routers), given, ReplayTerms(tally, floor))

    def anticipate(self, steps: int) -> None:
        """In training, choose experts by the routers' weights of `steps` steps ago, with gates of
        today's; 0 ends it. The shift is today's, and counts are of what was chosen.
        """
        self._check_attached()
        anticipate_choices(self.routers, steps)
