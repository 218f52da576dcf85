"""What a router has counted, as one state machine.

Between two steps a training loop calls its model in many ways: it accumulates gradients, recomputes
layers inside the backward pass, evaluates, generates, runs out of memory and tries again, and skips
a step. A token counts once if it was trained on, and not at all otherwise. Two things have a state.

The forward of a model, which `ForwardContext` moves:

    IDLE        no watched forward is running
    TRAINING    one is running that trains: gradients were on where the model was called, and no
                backward pass was running
    PASSIVE     one is running that cannot train: gradients were off (evaluation, generation), or a
                backward pass recomputes the whole model, or it is the reference policy's: PEFT's
                adapters are off, or others act than those that are trained
    DETACHED    the hooks are off, or the model is a copy: nothing counts any more

The count of a router, a `RouterCount`, which its `BalancedRouter` and `Balancing` move:

    UNUSED      never counted, and not called in training since the last step
    EMPTY       nothing was counted since the last step, though something was before
    ENTERED     its block was called in training, but no choice of experts was seen
    COUNTED     at least one forward was counted
    REPLAYED    nothing was counted, since all experts were given (attach/replay)

A choice of experts *counts* if the router's block is in training mode, no backward pass is running,
and the forward is TRAINING (or IDLE with gradients on: the block was called by itself). So an
evaluation with gradients on is TRAINING, and counts nothing: its blocks are in evaluation mode.
Everything counts in a context that records (`ForwardContext.records`).

    event                      noticed by                    forward      count
    -------------------------  ----------------------------  -----------  ------------------------
    model called, trains       ForwardContext.enter_module   -> TRAINING  remembers its length
    model called, otherwise    ForwardContext.enter_module   -> PASSIVE   stays
    block called, counts       BalancedRouter.enter_block    stays        UNUSED, EMPTY -> ENTERED
    experts chosen, counts     BalancedRouter.count_choices  stays        -> COUNTED
    experts chosen, otherwise  BalancedRouter.see_choice     stays        stays
    experts given, counts      BalancedRouter._is_replayed   stays        -> REPLAYED, or COUNTED
    layer recomputed           ForwardContext.counts         stays        stays
    forward returns            ForwardContext.leave_module   -> IDLE      stays
    training forward raises    ForwardContext.leave_module   -> IDLE      as before that forward
    step                       Balancing.step                stays        COUNTED -> EMPTY
    step of a replay           Balancing.step                stays        REPLAYED -> EMPTY
    step, router was missed    Balancing.step                stays        ENTERED, UNUSED: raises
    step was skipped           Balancing.drop                stays        -> EMPTY, or UNUSED
    state loaded               sidecar.restore_state         stays        -> EMPTY, or UNUSED
    detach                     Balancing.detach              -> DETACHED  -> EMPTY, or UNUSED

A step raises for an UNUSED router only while its block is in training mode, and not for routers of
pictures, which rest while a batch has none (`BalancedRouter.missed`).
"""

from __future__ import annotations

import enum

from equipoise.routing import Tally


class ForwardPhase(enum.Enum):
    """Where a model stands: the table above."""

    IDLE = enum.auto()
    TRAINING = enum.auto()
    PASSIVE = enum.auto()
    DETACHED = enum.auto()


class CountState(enum.Enum):
    """Where the count of a router stands: the table above."""

    UNUSED = enum.auto()
    EMPTY = enum.auto()
    ENTERED = enum.auto()
    COUNTED = enum.auto()
    REPLAYED = enum.auto()


class RouterCount:
    """What one router has counted since the last step, one Tally for every call."""

    def __init__(self) -> None:
        self.state = CountState.UNUSED
        self.tallies: list[Tally] = []
        self._before_forward = 0
        """how many of them are from forwards that have ended"""
        self._was_replayed = False
        """whether it was REPLAYED before the forward that runs"""
        self._at_rest = CountState.UNUSED
        """the state without tallies: UNUSED until something is counted, EMPTY from then on"""

    def enter_block(self) -> None:
        """The router's block was called in training."""
        if self.state not in (CountState.COUNTED, CountState.REPLAYED):
            self.state = CountState.ENTERED

    def add_tally(self, tally: Tally) -> None:
        """A choice of experts was counted."""
        self.tallies.append(tally)
        self.state, self._at_rest = CountState.COUNTED, CountState.EMPTY

    def replay_choice(self) -> None:
        """Experts were given in a forward that would count: it does not, and nothing is missed."""
        self._at_rest = CountState.EMPTY
        if self.state is not CountState.COUNTED:
            self.state = CountState.REPLAYED

    def begin_forward(self) -> None:
        """A training forward of the model begins."""
        self._before_forward = len(self.tallies)
        self._was_replayed = self.state is CountState.REPLAYED

    def fail_forward(self) -> None:
        """It raised: what was counted on the way is removed. The caller may try again with less."""
        del self.tallies[self._before_forward :]
        if self.tallies:
            self.state = CountState.COUNTED
        else:
            self.state = CountState.REPLAYED if self._was_replayed else self._at_rest

    def take_tallies(self) -> list[Tally]:
        """All tallies since the last step; they are counted no more."""
        tallies = self.tallies
        self.clear()
        return tallies

    def clear(self) -> None:
        """Forget what was counted since the last step."""
        self.tallies, self._before_forward, self.state = [], 0, self._at_rest
