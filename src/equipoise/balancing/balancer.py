"""Balancer: the four verbs every method speaks.

    shifted = balancer.adjust(scores)                       before the choice
    routing = route(scores, top_k, choose_by=shifted)       or both at once: balancer.route(scores)
    tally = balancer.tally(scores, routing)                 counts of this batch, which add up
    loss = loss + balancer.penalty(scores, routing)         0 for methods that do not use the loss
    ...
    optimizer.step(); balancer.update(tally)                after the optimizer's step, once

adjust, tally and penalty are pure: they change nothing, so evaluating, recomputing and accumulating
are all safe. Only update() changes anything, and only the training loop calls it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sized
from typing import Self

import torch
from torch import Tensor, nn

from equipoise.balancing.penalties import Penalty
from equipoise.balancing.precise import Precise
from equipoise.routing import Groups, Routing, Tally, route
from equipoise.routing.checks import (
    is_readable,
    number_if_readable,
    require_on_device,
    require_tensor,
)

_RENAMED_METHODS = {
    "judges_tokens_apart": "tokens_are_independent",
    "expect_parts": "fix_sampling_stride",
}


class Balancer(Precise, ABC):
    """The base of all balancers. `steps` counts the updates made, and is saved with the state.

    Args:
        num_experts: E.
        top_k: K.

    Example:
        >>> balancer = equipoise.balancer("deepseek", 8, top_k=2)
        >>> scores = torch.rand(64, 8)
        >>> routing = balancer.route(scores)
        >>> balancer.update(balancer.tally(scores, routing))
        >>> int(balancer.steps), tuple(balancer.shift.shape)
        (1, (8,))
    """

    steps: Tensor
    called: str = ""
    """the method it was made by, where it was made by name"""
    settings: Mapping[str, object] = {}
    """the rate and the options that method was given"""
    takes_top_k: bool = True
    """whether every token takes K experts; if not, empty places hold num_experts"""
    updates_made: int = 0
    """updates in this process: unlike `steps`, to look at it makes no GPU wait"""

    @property
    def needs_runner_up(self) -> bool:
        """Whether its tally looks at each token's (K+1)-th choice."""
        return False

    @property
    def needs_scores(self) -> bool:
        """Whether it must see scores. The others can learn from loads counted elsewhere."""
        return True

    @property
    def shift_or_zeros(self) -> Tensor:
        """(E,): what is added to scores before the choice; zeros for methods that have no shift."""
        return torch.zeros(self.num_experts, dtype=torch.float32, device=self.steps.device)

    @property
    def tokens_are_independent(self) -> bool:
        """Whether a token's experts and its part of the loss depend on no other token.

        A forward can then be cut into parts that choose what the whole would choose.
        """
        return not self.penalties

    @property
    def sequences_are_independent(self) -> bool:
        """The same of whole sequences: a forward can be cut between them."""
        return self.tokens_are_independent

    @property
    def uses_sequences(self) -> bool:
        """Whether a token's experts depend on the tokens before it in its sequence."""
        return False

    @property
    def chooses_by_shift(self) -> bool:
        """Whether a token's experts are the top-K of its scores and the shift, and nothing else."""
        return not self.uses_sequences

    def __init_subclass__(cls, **more: object) -> None:
        """A balancer of one's own that still has an old name would be passed over silently."""
        super().__init_subclass__(**more)
        for old, new in _RENAMED_METHODS.items():
            if old in vars(cls):
                raise TypeError(f"{cls.__name__}.{old} is now called {new}: rename it")

    def __init__(self, num_experts: int, top_k: int) -> None:
        super().__init__()
        if num_experts < 1 or not 1 <= top_k <= num_experts:
            raise ValueError(
                f"top_k = {top_k} of {num_experts} experts is impossible: 1 <= top_k <= num_experts"
            )
        self.num_experts = num_experts
        self.top_k = top_k
        self.penalties = nn.ModuleList()
        self.keep_buffer("steps", 0, dtype=torch.int64)

    def fix_sampling_stride(self, tokens: int) -> None:
        """Forwards of `tokens` tokens will come in parts: a sample whose stride depends on the
        number of tokens must use the whole forward's.
        """

    @abstractmethod
    def adjust(self, scores: Tensor) -> Tensor:
        """(..., E) scores -> what to choose by. Carries no gradient."""

    def route(
        self,
        scores: Tensor,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> Routing:
        """Choose: `equipoise.route` by adjusted scores.

        Methods that cannot express their choice in scores override it.
        """
        terms = self._choice_terms(scores)
        return self._route_by(terms, scores, groups, mask, renormalize, scale)

    def _route_by(
        self,
        terms: dict[str, Tensor],
        scores: Tensor,
        groups: Groups | tuple[int, int] | None,
        mask: Tensor | None,
        renormalize: bool,
        scale: float,
    ) -> Routing:
        """`equipoise.route` by these terms: shift or choose_by."""
        return route(
            scores,
            self.top_k,
            shift=terms.get("shift"),
            choose_by=terms.get("choose_by"),
            groups=groups,
            mask=mask,
            renormalize=renormalize,
            scale=scale,
            runner_up=self.needs_runner_up,
        )

    def _choice_terms(self, scores: Tensor) -> dict[str, Tensor]:
        """What `equipoise.route` is to choose by."""
        return {"choose_by": self.adjust(scores)}

    def tally(self, scores: Tensor, routing: Routing) -> Tally:
        """What update() must know of this batch, in whole numbers that add up."""
        require_tensor(scores, "scores")
        loads = routing.loads
        if loads.shape[0] != self.num_experts:
            raise ValueError(
                f"this routing is over {loads.shape[0]} experts, the balancer over "
                f"{self.num_experts}"
            )
        counted: dict[str, Tensor] = {}
        for penalty in self.penalties:
            assert isinstance(penalty, Penalty)
            counted |= penalty.count(scores, routing)
        step = self.steps.to(loads.device, copy=True)
        return Tally(loads=loads, forwards=loads.unsqueeze(0), step=step, parts=counted)

    def penalty_part_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what the carried penalties add to a tally, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for penalty in self.penalties:
            assert isinstance(penalty, Penalty)
            shapes |= penalty.part_shapes(self.num_experts)
        return shapes

    def empty_tally(self) -> Tally:
        """The tally of no tokens at all: of a layer that rests while others are counted."""
        scores = torch.zeros(0, self.num_experts, device=self.steps.device)
        return self.tally(scores, route(scores, self.top_k, runner_up=True))

    def penalty(
        self,
        scores: Tensor,
        routing: Routing,
        logits: Tensor | None = None,
        sequences: Tensor | None = None,
    ) -> Tensor:
        """What to add to the loss: the sum of the penalties this balancer carries, or 0.

        Args:
            scores: (..., E) as given to route.
            routing: what route returned for them.
            logits: (..., E) the router's, for penalties on logits (z_loss).
            sequences: (...) which sequence each token belongs to, for penalties per sequence; by
                default the first of the scores' leading dimensions.
        """
        require_tensor(scores, "scores")
        total = scores.new_zeros((), dtype=torch.float32)
        for penalty in self.penalties:
            total = total + penalty(scores, routing, logits, sequences)
        return total

    def carry(self, *penalties: Penalty) -> Self:
        """Add penalties to this balancer, and return it.

        DeepSeek-V3 runs a shift and a small sequence penalty together.
        """
        for penalty in penalties:
            penalty.build(self.num_experts)
            self.penalties.append(penalty)
        return self

    @torch.no_grad()
    def update(self, tally: Tally) -> None:
        """Move the state by what was counted since the last update.

        Call it once after every optimizer step. A tally without tokens changes nothing but `steps`.
        """
        if not self.training:
            raise RuntimeError(
                "update() in evaluation: a balancer must not learn from evaluation batches. Call "
                ".train() first if this is a training step"
            )
        tally = self._check_tally(tally)
        some = self._has_tokens(tally)
        if not is_readable(some):
            self._learn_where(some, tally)
        elif some:
            self._learn(tally)
        self.steps += 1
        self.updates_made += 1

    def _has_tokens(self, tally: Tally) -> Tensor:
        """(): whether a tally counted any token."""
        return tally.loads.sum() > 0

    def _learn(self, tally: Tally) -> None:
        """Move the state and the penalties' by a tally that was checked."""
        self._move(tally)
        for penalty in self.penalties:
            assert isinstance(penalty, Penalty)
            penalty.see(tally)

    def _learn_where(self, some: Tensor, tally: Tally) -> None:
        """The same on a device that must not wait: what an empty tally changed is put back.

        A batch without tokens shows nothing. A rule would still forget by it, or repeat its last
        step.
        """
        before = {name: value.clone() for name, value in self.state_dict().items()}
        self._learn(tally)
        for name, value in self.state_dict().items():
            value.copy_(torch.where(some, value, before[name]))

    @abstractmethod
    def _move(self, tally: Tally) -> None:
        """Change the state by a tally that was checked.

        `steps` still holds the number of earlier updates.
        """

    def _check_tally(self, tally: Tally) -> Tally:
        if tally.loads.shape != (self.num_experts,):
            raise ValueError(
                f"this tally is of {tally.loads.shape[0]} experts, the balancer has "
                f"{self.num_experts}"
            )
        if tally.loads.device != self.steps.device:
            tally = tally.to(self.steps.device)
        require_on_device(
            tally.step == self.steps,
            lambda: ValueError(
                f"this tally was taken at step {number_if_readable(tally.step)}, but the balancer "
                f"is at step {number_if_readable(self.steps)}: it was counted under another shift. "
                "Take a new tally after every update()"
            ),
        )
        return tally

    def extra_repr(self) -> str:
        return f"num_experts={self.num_experts}, top_k={self.top_k}"

    def __repr__(self) -> str:
        """One line: the method's name and rate, or what a balancer of one's own is made of."""
        words = [self.extra_repr()]
        if self.called:
            words += [f"{name}={_short_repr(value)}" for name, value in self.settings.items()]
            # a penalty's own coefficient stands there already
            carried = () if "coefficient" in self.settings else self.penalties
            words += [f"carries {_one_line(each)}" for each in carried]
        else:
            inner = [each for name, each in self.named_children() if name not in _UNSHOWN]
            words += [_one_line(each) for each in inner if not isinstance(each, nn.ModuleList)]
            lists = [each for each in inner if isinstance(each, nn.ModuleList)]
            words += [_one_line(part) for each in lists for part in each]
        return f"{self.called or type(self).__name__}({', '.join(words)})"


_UNSHOWN = ("target", "settling")
"""parts that every balancer of its kind has, and that say nothing of the method"""


def _short_repr(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str | int | bool | None):
        return repr(value)
    return f"<{len(value)} values>" if isinstance(value, Sized) else type(value).__name__


def _one_line(module: nn.Module) -> str:
    return " ".join(repr(module).split())
