"""Dual: the balancers that move one number per expert, the dual variable of the assignment problem.

    direction  where to go, read from the tally         (directions.py, quantile.py, curvature.py)
    parts      what is done to it on the way            (parts.py)
    geometry   what a step from the shift means         (geometry.py)
    moving     what evens loads within a sequence, if anything does   (moving_quantile.py)

DeepSeek's rule is LoadGap, Sign, Scale(1e-3). Every named method is such a list: see presets.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor, nn

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.shift.directions import Direction
from equipoise.balancing.shift.geometry import Geometry, euclidean
from equipoise.balancing.shift.moving_quantile import MovingQuantile, SequenceState
from equipoise.balancing.shift.parts import Part
from equipoise.balancing.shift.settling import Settling
from equipoise.balancing.target import Target, Weights
from equipoise.routing import Groups, Routing, Tally
from equipoise.routing.checks import require_tensor


class Dual(Balancer):
    """A shift per expert, added to the scores before the choice and to nothing else.

    Args:
        num_experts: E.
        top_k: K.
        direction: where the shift should go.
        parts: what is done to the direction before it is added, in this order.
        geometry: how a step is added to the shift.
        target: weights of the experts' target loads; equal by default.
    """

    shift: Tensor
    rest_at: Tensor
    rest_over: Tensor
    last_step: Tensor | None = None
    """(E,) what the last update meant to add to the shift, for traces; None where a geometry does
    more than add. Not saved with the state."""

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        direction: Direction,
        parts: Iterable[Part] = (),
        *,
        geometry: Geometry = euclidean,
        target: Weights = None,
    ) -> None:
        super().__init__(num_experts, top_k)
        self.direction = direction
        self.parts = nn.ModuleList(parts)
        self.geometry = geometry
        self.target = Target(num_experts, top_k, target)
        self.keep_buffer("shift", 0.0, (num_experts,))
        # a rule that already weighs noise against drift has nothing left to smooth
        self.settling = None if direction.filters_noise else Settling(num_experts)
        # the update at which the shift comes to rest, and over how many it slows down
        self.keep_buffer("rest_at", torch.inf)
        self.keep_buffer("rest_over", 1.0)
        self.moving: MovingQuantile | None = None
        for module in (direction, *self.parts):
            module.build(num_experts)
        direction.aim(self.target)

    def within_sequences(self, moving: MovingQuantile) -> Self:
        """Even loads within sequences too, by each token's scores lowered; return this balancer."""
        moving.build(self.target)
        self.moving = moving
        return self

    @property
    def moves_when_balanced(self) -> bool:
        """Whether the shift may move although loads are balanced.

        Rules that average over steps do, and those that read more than loads.
        """
        return any(module.moves_when_balanced for module in (self.direction, *self.parts))

    @property
    def needs_runner_up(self) -> bool:
        return self.direction.needs_runner_up

    @property
    def needs_scores(self) -> bool:
        return self.direction.needs_scores or self.uses_sequences or len(self.penalties) > 0

    @property
    def uses_sequences(self) -> bool:
        return self.moving is not None

    @property
    def tokens_are_independent(self) -> bool:
        return super().tokens_are_independent and not self.uses_sequences

    @property
    def sequences_are_independent(self) -> bool:
        return super().tokens_are_independent

    @property
    def shift_or_zeros(self) -> Tensor:
        return self.shift.detach()

    def fix_sampling_stride(self, tokens: int) -> None:
        self.direction.fix_sampling_stride(tokens, self.top_k, self.num_experts)

    def adjust(
        self, scores: Tensor, mask: Tensor | None = None, sequences: Tensor | None = None
    ) -> Tensor:
        """scores + shift, at least in float32: bf16 scores are lifted before the shift is added.

        `mask` and `sequences`, see `route`, matter to a balancer that evens loads within sequences.
        """
        self._check_scores(scores)
        return self._lowered(scores, mask, sequences) + self.shift.to(scores.device)

    def route(
        self,
        scores: Tensor,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
        sequences: Tensor | None = None,
    ) -> Routing:
        """Choose: `equipoise.route` by adjusted scores.

        `sequences` (...) names each token's sequence, for a balancer that evens loads within them;
        by default the first of the scores' leading dimensions counts sequences.
        """
        terms = self._choice_terms(scores)
        if self.uses_sequences:
            terms = {"choose_by": self.adjust(scores, mask, sequences)}
        return self._route_by(terms, scores, groups, mask, renormalize, scale)

    def route_next(
        self,
        scores: Tensor,
        state: SequenceState | None = None,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> tuple[Routing, SequenceState]:
        """Choose for the next tokens of B sequences, (B, S, E), and return what to go on from.

        As `route` would have chosen for all of them at once, to the last bit. `state` is what the
        last call returned; None begins new sequences.
        """
        if self.moving is None:
            raise ValueError(
                "this balancer looks at no sequence, and has nothing to go on from: use route()"
            )
        self._check_scores(scores)
        state = self.moving.new_state(len(scores)) if state is None else state
        lowered, state = self.moving.lowered_next(scores, state, mask)
        terms = {"choose_by": lowered + self.shift.to(scores.device)}
        return self._route_by(terms, scores, groups, mask, renormalize, scale), state

    def _lowered(self, scores: Tensor, mask: Tensor | None, sequences: Tensor | None) -> Tensor:
        """What takes the place of the scores for the shift and its rule, without a gradient."""
        if self.moving is None:
            return scores.detach()
        return self.moving.lowered_scores(scores, mask, sequences)

    def _choice_terms(self, scores: Tensor) -> dict[str, Tensor]:
        """The shift itself: scores + shift (T, E) is then never written down."""
        if type(self).adjust is not Dual.adjust:
            return super()._choice_terms(scores)
        self._check_scores(scores)
        return {"shift": self.shift.to(scores.device)}

    def _check_scores(self, scores: Tensor) -> None:
        require_tensor(scores, "scores")
        if scores.shape[-1] != self.num_experts:
            raise ValueError(
                f"scores are over {scores.shape[-1]} experts, the balancer over {self.num_experts}"
            )

    def tally(self, scores: Tensor, routing: Routing, sequences: Tensor | None = None) -> Tally:
        tally = super().tally(scores, routing)
        flat = scores.detach().flatten(0, -2)
        if self.direction.needs_scores and len(flat):
            mask = None if routing.mask is None else routing.mask.view(scores.shape[:-1])
            flat = self._lowered(scores, mask, sequences).flatten(0, -2)
        tally.parts.update(self.direction.count(flat, routing, self.shift.to(scores.device)))
        return tally

    def _check_tally(self, tally: Tally) -> Tally:
        tally = super()._check_tally(tally)
        mine = self.direction.part_shapes(self.num_experts)
        if mine is not None:
            mine = mine | self.penalty_part_shapes()
        theirs = {name: tuple(part.shape) for name, part in tally.parts.items()}
        if mine is not None and mine != theirs:
            raise ValueError(
                f"this tally is another rule's: it counts {theirs or 'loads alone'}, this balancer "
                f"{mine or 'loads alone'}. Take it by this balancer's own tally()"
            )
        return tally

    def _move(self, tally: Tally) -> None:
        n = (self.steps + 1).to(torch.float32)
        step = self.direction(tally, self.target).to(torch.float32)
        for part in self.parts:
            step = part(step, n)
        before, pace = self.shift.clone(), self._pace()
        self.shift.lerp_(self.geometry(before, step), pace)
        self.last_step = step * pace if self.geometry is euclidean else None
        if self.settling is not None:
            self.settling.see(before, self.shift)

    @property
    def settled_shift(self) -> Tensor:
        """(E,) float32: the shift without the noise of the last batches (settling.py).

        It is for evaluation and export. It is the shift itself under curvature, which filters noise
        already, and where the shift was written by hand since the last update.
        """
        return self.shift if self.settling is None else self.settling.of(self.shift)

    def settle(self) -> None:
        """Set the shift to the settled one for good, at the end of training.

        `with equipoise.settled(model):` does it for a block.
        """
        self.shift.copy_(self.settled_shift)

    def freeze(self) -> None:
        """Leave the shift where it is from now on. Saved with the state.

        DeepSeek-V3 does so for its last 500B tokens.
        """
        self.anneal(0)

    def anneal(self, updates: int) -> None:
        """Slow the shift's movement to zero, linearly over the next `updates` updates.

        Saved with the state.
        """
        if not isinstance(updates, (int, float)) or not 0 <= updates < math.inf:
            raise ValueError(
                f"cannot anneal over {updates!r} updates: give a number of updates, 0 or more"
            )
        self.rest_at.copy_(self.steps + updates)
        self.rest_over.fill_(max(updates, 1))

    def unfreeze(self) -> None:
        """Undo freeze() and anneal()."""
        self.rest_at.fill_(torch.inf)

    def _pace(self) -> Tensor:
        """1 while the shift moves freely, 0 when frozen. lerp_ is exact at both ends."""
        return ((self.rest_at - self.steps) / self.rest_over).clamp(0.0, 1.0)
