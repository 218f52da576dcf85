"""ChoiceExchange: of one router, the experts it is given, those it took, and what was kept of them.

Activation checkpointing runs a forward again inside the backward pass, often after the replay has
ended, and in any order among several micro-batches. It must take the same experts again. Which
forward is being recomputed is nowhere to be read, but a recomputation ranks its tokens as the
forward did: so the router's *own* choice of every forward is kept, and tells them apart. Where it
does not, that is an error, and never a guess (kept_forwards.py). What is kept goes at the next
step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.attach.replay.anticipation import Anticipation, OlderChoice
from equipoise.attach.replay.choice_measures import measure_choice
from equipoise.attach.replay.exchanged_topk import ExchangedTopK
from equipoise.attach.replay.expert_choices import ExpertChoices
from equipoise.attach.replay.given_experts import LIVE, to_device
from equipoise.attach.replay.given_rows import GivenRows
from equipoise.attach.replay.kept_forwards import KeptForward, KeptForwards, Replayed
from equipoise.attach.replay.score_floor import apply_floor, can_vanish, replace_vanishing
from equipoise.routing.recomputation import in_backward


class ExchangeContext(Protocol):
    """What an exchange must know of the forward it runs in: a ForwardContext, or a LayerContext."""

    replays: bool
    """whether experts are given"""

    def known_padding(self, name: str, num_tokens: int) -> Tensor | None:
        """(T,) bool, True for padding; None where there is none, or it is unknown."""

    def may_recompute(self, is_replayed: bool) -> bool:
        """Whether a backward pass may run the running forward again."""


class ChoiceExchange:
    """What stands between the top-K of one router and the experts it takes."""

    def __init__(self, name: str, spec: RoutingSpec, context: ExchangeContext) -> None:
        self.name = name
        self.spec = spec
        self.context = context
        self.recording: ExpertChoices | None = None
        self.with_margins = False
        self.given: GivenRows | None = None
        self.tally_own = False
        """whether a replayed forward counts, by what the router itself would have chosen"""
        self.floor = 0.0
        """below which share of its own weakest score a given expert is not taken"""
        self.has_replayed = False
        """from then on live forwards are kept too, to tell them from replayed ones"""
        self.own: Tensor | None = None
        """(T, K) of the run that is or was the last"""
        self.anticipation: Anticipation | None = None
        """set where experts are chosen by weights of some steps ago"""
        self.shift: Callable[[], Tensor] | None = None
        """what is added to the ranked scores before the choice, where the model has no bias"""
        self.bias: Callable[[], Tensor] | None = None
        """what the model has added to the scores that it ranks"""
        self._kept = KeptForwards(name)
        self._forget_run()

    def _forget_run(self) -> None:
        self.own = None
        self.older: OlderChoice | None = None
        self._first_own: Tensor | None = None
        self._replayed: Replayed | None = None
        self._on_device: Tensor | None = None
        self._live: Tensor | None = None
        self._refused: Tensor | None = None
        self._taken: Tensor | None = None
        self._measured: tuple[Tensor, Tensor] | None = None
        """what it ranked, and the scores that gates come from, where both are to be recorded"""

    def rename(self, name: str) -> None:
        """Call it by another name from now on."""
        self.name = self._kept.name = name

    @property
    def active(self) -> bool:
        """Whether a run of the router must be watched."""
        return self.recording is not None or self.has_replayed or self.anticipation is not None

    @property
    def replayed(self) -> Replayed | None:
        """What was given to the run that is or was the last, a recomputation too."""
        return self._replayed

    def forget_forwards(self) -> None:
        """No forward that was run will be recomputed."""
        self._kept.clear()

    def begin_run(self, older: OlderChoice | None = None) -> ExchangedTopK:
        """The mode to run the router in; an older choice stands in the place of its own."""
        self._forget_run()
        self.older = older
        return ExchangedTopK(self.spec, self.settle)

    def settle(self, own: Tensor, ranked: Tensor, scores: Tensor) -> Tensor:
        """The experts to take, (..., K), where the router ranks `own` first by `ranked` (..., E),
        and `scores` are those of all groups.
        """
        flat = own.detach().reshape(-1, self.spec.top_k)
        if self.older is not None:
            flat, ranked = self.older.own, self.older.ranked
        if self._first_own is None:
            # a group's own top-2 may look like the choice, and comes before it
            self._first_own = flat
            self._replayed = self._find_replayed(flat)
            if self._replayed is not None:
                self._on_device = to_device(self._replayed.rows, flat.device)
        self.own = self._taken = flat
        if self.with_margins and self.recording is not None:
            self._measured = ranked, scores
        if self._on_device is None or self._replayed is None:
            return own if self.older is None else flat.view(own.shape)
        if self._replayed.settled is not None:
            self._taken = self._replayed.settled.long()
            return self._taken.view(own.shape)
        given = self._on_device
        if self._replayed.may_be_live:
            self._live = given[:, 0] == LIVE
            given = torch.where(given == LIVE, flat, given)
        self._taken = self._accept(given, flat, scores, self._replayed.floor)
        return self._taken.view(own.shape)

    def _accept(self, given: Tensor, own: Tensor, scores: Tensor, floor: float) -> Tensor:
        """(T, K): the given experts, without those that the router scores too low."""
        # a family with a bias divides by a sum to which it adds a little
        vanishes = can_vanish(self.spec.score) and self.bias is None
        flat = scores.detach().reshape(-1, self.spec.num_experts)
        if floor:
            if self.bias is not None:
                flat = flat - self.bias().to(flat.device)
            given, self._refused = apply_floor(given, own, flat, floor, self.spec.score)
        if vanishes:
            given, low = replace_vanishing(given, own, flat)
            self._refused = low if self._refused is None else self._refused | low
        return given

    def finish_run(self) -> None:
        """The router has returned."""
        if self._taken is not None and not in_backward():
            self._note_forward(self._taken)
        # what lies on the device is of one layer at a time
        self._on_device = self._taken = self._live = self._refused = self._measured = None

    def _note_forward(self, taken: Tensor) -> None:
        """Report what was replayed of it, record it, and keep it for a recomputation."""
        if self._on_device is not None and self.given is not None:
            padding = self.context.known_padding(self.name, len(taken))
            self.given.count_tokens(len(taken), self._live, self._refused, padding)
        if self.recording is not None:
            self._add_rows(self.recording, taken)
        if self.has_replayed and self.context.may_recompute(self.given is not None):
            assert self._first_own is not None
            replayed = self._replayed
            if replayed is not None and replayed.floor:
                # scores may differ in a last bit when they are recomputed
                replayed = replayed._replace(settled=taken.to(torch.int16))
            self._kept.add(KeptForward(self._first_own.to(torch.int16), replayed))

    def _find_replayed(self, own: Tensor) -> Replayed | None:
        if in_backward():
            return self._kept.find_recomputed(own)
        if self.given is None:
            return None
        return Replayed(self.given.take_next(self.name, len(own)), self.tally_own, self.floor)

    def _add_rows(self, recording: ExpertChoices, taken: Tensor) -> None:
        rows = taken.cpu().numpy()
        if self._measured is None:
            recording.add_rows(self.name, rows)
            return
        ranked, scores = self._measured
        shift, bias = (None if each is None else each() for each in (self.shift, self.bias))
        found = measure_choice(ranked, scores, taken, self.spec, shift, bias)
        margins, levels, gates = (each.cpu().numpy() for each in found)
        recording.add_rows(self.name, rows, margins, levels=levels, gates=gates)
