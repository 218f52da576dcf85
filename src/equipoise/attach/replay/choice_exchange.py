"""ChoiceExchange: of one router, the experts it is given, those it took, and what was kept of them.

Activation checkpointing runs a forward again inside the backward pass, often after the replay has
ended, and in any order among several micro-batches. It must take the same experts again. Which
forward is being recomputed is nowhere to be read, but a recomputation ranks its tokens as the
forward did: so the router's *own* choice of every forward is kept, and tells them apart. Where it
does not, that is an error, and never a guess. What is kept goes at the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.attach.count.forward_context import ForwardContext
from equipoise.attach.count.states import ForwardPhase
from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.attach.replay.choice_measures import measure_choice
from equipoise.attach.replay.exchanged_topk import ExchangedTopK
from equipoise.attach.replay.expert_choices import ExpertChoices, Rows
from equipoise.attach.replay.given_experts import LIVE, to_device
from equipoise.routing.recomputation import in_backward

_LEAST_ALIKE = 0.9
"""share of tokens whose own choice a recomputation repeats; below it is of another forward. Not 1,
since kernels that add in any order may flip a near tie
"""


@dataclass
class GivenRows:
    """What one router takes in a replay, forward after forward."""

    rows: Rows
    """(T, K) of all forwards"""
    taken: int = 0
    """how many of them were routed"""
    counted: int | Tensor = 0
    live: int | Tensor = 0
    """tokens, without padding: all, and those routed live. Tensors stay on their device"""

    def take_next(self, name: str, tokens: int) -> Rows:
        """(tokens, K) of the next forward."""
        left = len(self.rows) - self.taken
        if tokens > left:
            raise ValueError(
                f"{name} routes {tokens} tokens, and experts of {left} more are given "
                f"({len(self.rows)} in all): give those of every token, padding included"
            )
        self.taken += tokens
        return self.rows[self.taken - tokens : self.taken]

    def count_live(self, live: Tensor, padding: Tensor | None) -> None:
        """Add (T,) bool tokens."""
        kept = torch.ones_like(live) if padding is None else ~padding
        self.counted = self.counted + kept.sum()
        self.live = self.live + (live & kept).sum()


@dataclass(frozen=True)
class KeptForward:
    """A forward whose backward pass may recompute it."""

    own: Tensor
    """(T, K) int16 on the device: what the router itself ranked first"""
    rows: Rows | None
    """(T, K) on the host, as given; None where it routed live"""

    def same_rows(self, other: KeptForward) -> bool:
        if self.rows is None or other.rows is None:
            return self.rows is other.rows
        return np.array_equal(self.rows, other.rows)


class ChoiceExchange:
    """What stands between the top-K of one router and the experts it takes."""

    def __init__(self, name: str, spec: RoutingSpec, context: ForwardContext) -> None:
        self.name = name
        self.spec = spec
        self.context = context
        self.recording: ExpertChoices | None = None
        self.with_margins = False
        self.given: GivenRows | None = None
        self.tally_own = False
        """whether a replayed forward counts, by what the router itself would have chosen"""
        self.has_replayed = False
        """from then on live forwards are kept too, to tell them from replayed ones"""
        self.own: Tensor | None = None
        """(T, K) of the run that is or was the last"""
        self._kept: list[KeptForward] = []
        self._lost_replay = False
        """whether a forward that was replayed is kept no more"""
        self._first_own: Tensor | None = None
        self._rows: Rows | None = None
        self._on_device: Tensor | None = None
        self._taken: Tensor | None = None
        self._ranked: Tensor | None = None
        self.shift: Callable[[], Tensor] | None = None
        """what is added to the ranked scores before the choice, where the model has no bias"""
        self.bias: Callable[[], Tensor] | None = None
        """what the model has added to the scores that it ranks"""

    @property
    def active(self) -> bool:
        """Whether a run of the router must be watched."""
        return self.recording is not None or self.has_replayed

    def forget_forwards(self) -> None:
        """No forward that was run will be recomputed."""
        self._lost_replay |= any(kept.rows is not None for kept in self._kept)
        self._kept.clear()

    def begin_run(self) -> ExchangedTopK:
        """The mode to run the router in."""
        self.own = self._first_own = self._rows = self._on_device = self._taken = None
        self._ranked = None
        return ExchangedTopK(self.spec, self.settle)

    def settle(self, own: Tensor, ranked: Tensor) -> Tensor:
        """The experts to take, (..., K), where the router ranks `own` first."""
        flat = own.detach().reshape(-1, self.spec.top_k)
        if self._first_own is None:
            # a group's own top-2 may look like the choice, and comes before it
            self._first_own = flat
            self._rows = self._find_rows(flat)
            if self._rows is not None:
                self._on_device = to_device(self._rows, flat.device)
        self.own = self._taken = flat
        if self.with_margins and self.recording is not None:
            self._ranked = ranked
        if self._on_device is None:
            return own
        self._taken = torch.where(self._on_device == LIVE, flat, self._on_device)
        return self._taken.view(own.shape)

    def finish_run(self) -> None:
        """The router has returned."""
        if self._taken is None or in_backward():
            return
        if self._on_device is not None and self.given is not None:
            padding = self.context.known_padding(self.name, len(self._taken))
            self.given.count_live(self._on_device[:, 0] == LIVE, padding)
        if self.recording is not None:
            self._add_rows(self.recording, self._taken)
        # a block that is called by itself may be checkpointed with gradients off
        by_itself = self.given is not None and self.context.phase is ForwardPhase.IDLE
        if self.has_replayed and (self.context.trains or by_itself):
            assert self._first_own is not None
            self._kept.append(KeptForward(self._first_own.to(torch.int16), self._rows))

    def _find_rows(self, own: Tensor) -> Rows | None:
        if in_backward():
            return self._find_recomputed(own)
        return None if self.given is None else self.given.take_next(self.name, len(own))

    def _find_recomputed(self, own: Tensor) -> Rows | None:
        """What the forward took that is being recomputed."""
        alike = [kept for kept in self._kept if kept.own.shape == own.shape]
        replayed = self._lost_replay or any(kept.rows is not None for kept in self._kept)
        if not replayed or not len(own):
            return None
        mine = own.to(torch.int16)
        # one wait for the device, however many there are
        shares = [(kept.own == mine).all(1).float().mean() for kept in alike]
        found = torch.stack(shares).tolist() if shares else []
        best = max(found, default=0.0)
        if best < _LEAST_ALIKE:
            raise RuntimeError(
                f"{self.name} is recomputed in a backward pass, and no forward since the last step "
                f"ranked its {len(own)} tokens so (the nearest: {best:.0%} of them). Replay and "
                "gradient checkpointing go together if the backward pass of a forward runs before "
                "balancing.step() and before its weights change"
            )
        nearest = [kept for kept, share in zip(alike, found) if share == best]
        if not all(kept.same_rows(nearest[0]) for kept in nearest):
            raise RuntimeError(
                f"{self.name} is recomputed in a backward pass, and {len(nearest)} forwards of the "
                "same tokens took different experts: run the backward pass of each before the "
                "next forward, and balancing.step() or drop() between them"
            )
        return nearest[-1].rows

    def _add_rows(self, recording: ExpertChoices, taken: Tensor) -> None:
        rows, ranked = taken.cpu().numpy(), self._ranked
        if ranked is None:
            recording.add_rows(self.name, rows)
            return
        shift, bias = (None if each is None else each() for each in (self.shift, self.bias))
        found = measure_choice(ranked, ranked, taken, self.spec, shift, bias)
        margins, levels, gates = (each.cpu().numpy() for each in found)
        recording.add_rows(self.name, rows, margins, levels=levels, gates=gates)
