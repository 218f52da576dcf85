"""BalancedRouter: one router of a model, its balancer, and what it has counted since the last step.

A router with a bias is watched: its gate's logits (if the balancer looks at scores) and the indices
its experts are called with, which is the point that stayed the same through all of transformers 5.
A router without one has its top-K shifted (shifted_topk.py), and is counted there. Counts are plain
int64 tensors: a buffer would be broadcast by DDP and cast by .to(). When a count changes, and to
which state, is in states.py.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from equipoise.attach.count.applied_shift import AppliedShift
from equipoise.attach.count.forward_context import ForwardContext, eager
from equipoise.attach.count.shifted_topk import ShiftedTopK
from equipoise.attach.count.states import CountState, RouterCount
from equipoise.attach.count.tallying import check_countable, make_tally
from equipoise.attach.find.kernels import ClassForward, runs_kernel
from equipoise.attach.find.quirks import routes_pictures
from equipoise.attach.find.remedy import TEN_LINES
from equipoise.attach.find.routers import FoundRouter
from equipoise.attach.find.routing_spec import find_choice, holds_choice, score_by_name
from equipoise.attach.patching import PatchedMethod
from equipoise.balancing import Dual
from equipoise.routing import Tally, route

if TYPE_CHECKING:
    from equipoise.attach.replay.choice_exchange import ChoiceExchange


class BalancedRouter:
    """One router of a model and its balancer."""

    def __init__(self, found: FoundRouter, balancer: Dual, context: ForwardContext) -> None:
        check_countable(found, balancer)
        self.found = found
        self.balancer = balancer
        self.context = context
        self.count = RouterCount()
        self.shift = AppliedShift(balancer, found.bias)
        self.anneal_left = 0
        """updates until the shift of a router without a bias is 0"""
        self.observer: Callable[[BalancedRouter, Tensor, Tensor | None], None] | None = None
        """called with the experts and scores of every counted call, without padding: for traces"""
        self.on_failure: Callable[[BalancedRouter], None] | None = None
        """called when a training forward raised, after its counts were removed: for traces"""
        self.exchange: ChoiceExchange | None = None
        """between its top-K and the experts it takes, once they were recorded or replayed"""
        self._choices = 0
        """how often it chose in the forward that runs, without a bias"""
        self._has_chosen = False
        """whether what it chooses now is not to be counted, since an older choice is"""
        self._logits: Tensor | None = None
        """what the gate returned, until its experts are called"""
        self._handles: list[RemovableHandle] = []
        self._kernel: PatchedMethod | None = None
        """the Hub kernel of the gate, whose place the gate's own forward has taken"""
        self._patched: PatchedMethod | None = None
        """the method that chooses; with a bias of its own, once that is recorded or replayed"""

    def __deepcopy__(self, memo: dict[int, Any]) -> BalancedRouter:
        """A copy of a model routes as the model does, and counts nothing: no step would use it."""
        twin = memo[id(self)] = copy.copy(self)
        twin.count, twin.observer, twin.on_failure = RouterCount(), None, None
        twin.exchange = None
        for name in ("found", "balancer", "context", "shift", "_kernel", "_patched", "_handles"):
            setattr(twin, name, copy.deepcopy(getattr(self, name), memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """A pickled model too routes as the model does, and counts nothing."""
        nothing = dict.fromkeys(("observer", "on_failure", "exchange", "_logits"))
        return {**vars(self), **nothing, "count": RouterCount()}

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def block(self) -> nn.Module:
        """The module that holds its gate and its experts."""
        return self.found.block

    @property
    def applied_shift(self) -> Tensor:
        """(E,) float32: what the model adds to the scores before the choice."""
        return self.shift.values

    @property
    def offered(self) -> Tensor:
        """The former name of `applied_shift`."""
        warnings.warn("offered is now applied_shift", DeprecationWarning, stacklevel=2)
        return self.applied_shift

    @property
    def frozen(self) -> bool:
        """Whether nothing in its layer trains: then its shift is not moved either, though it is no
        parameter.
        """
        return not any(parameter.requires_grad for parameter in self.found.layer.parameters())

    @property
    def missed(self) -> bool:
        """Whether it trains, and was not counted since the last step although it should have been.

        One that was never counted is missed too: something may go around its hooks from the start.
        Routers of pictures may rest.
        """
        if not self.found.block.training:
            return False
        if self.count.state is CountState.UNUSED:
            return not routes_pictures(self.name)
        return self.count.state is CountState.ENTERED

    # ---- hooks on and off

    def attach(self) -> None:
        """Watch the router, or shift its top-K where it has no bias."""
        found = self.found
        self.context.listeners.append(self)
        self._handles = [found.block.register_forward_pre_hook(self.enter_block)]
        if runs_kernel(found.gate):
            self._kernel = PatchedMethod(found.gate, "forward", ClassForward(found.gate))
        if found.bias is None:
            self._patched = self._patch_choice(self.run_shifted)
            return
        self.shift.write()
        self._handles.append(found.bias.owner.register_state_dict_pre_hook(self.before_saving))
        if found.spec.logits_at is not None:
            self._handles.append(found.gate.register_forward_hook(self.see_logits))
        self._handles.append(
            # after the hook that keeps the logits
            found.gate.register_forward_hook(self.see_gate_choice, with_kwargs=True)
            if found.called_one_by_one
            else found.experts.register_forward_pre_hook(self.see_choice, with_kwargs=True)
        )

    def watch_choice(self, exchange: ChoiceExchange) -> None:
        """Let the exchange stand between its top-K and the experts it takes, until it is detached.

        A forward may be recomputed long after its replay has ended.
        """
        self.exchange = exchange
        if self._patched is None:
            self._patched = self._patch_choice(self.run_exchanged)

    def _patch_choice(self, replacement: Callable[..., Any]) -> PatchedMethod:
        """Put it in the place of the method that chooses."""
        found = self.found
        if found.spec.in_gate:
            return PatchedMethod(found.gate, "forward", replacement)
        return PatchedMethod(found.block, "route_tokens_to_experts", replacement)

    def detach(self) -> None:
        """Remove every hook, and forget what was counted."""
        for handle in self._handles:
            handle.remove()
        for replaced in (self._patched, self._kernel):
            if replaced is not None:
                replaced.restore()
        self._handles, self._patched, self._kernel = [], None, None
        self.exchange = None
        self.count.clear()

    # ---- in a forward

    def begin_forward(self, in_training_mode: bool) -> None:
        """A forward of the model begins that trains."""
        self.count.begin_forward()
        if in_training_mode:
            self.shift.refresh()

    def fail_forward(self) -> None:
        """It raised."""
        self.count.fail_forward()
        if self.on_failure is not None:
            self.on_failure(self)

    def begin_reference(self) -> None:
        """A forward of the reference policy begins."""
        self.shift.begin_reference()

    def end_reference(self) -> None:
        """It returned, or raised."""
        self.shift.end_reference()

    def enter_block(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.context.may_count(self.block):
            self._enter_block(module)

    @eager
    def _enter_block(self, module: nn.Module) -> None:
        if self.context.counts(module):
            self.count.enter_block()

    def see_logits(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """The gate of a router with a bias returns: its logits are kept, if they will be needed."""
        if self.context.may_count(self.block):
            self._see_logits(output)

    @eager
    def _see_logits(self, output: Any) -> None:
        place = self.found.spec.logits_at
        if place is not None and (
            self.balancer.needs_scores or self.observer or self._sharded_experts()
        ):
            if self.exchange is not None and self.exchange.older is not None:
                output = self.exchange.older.answer
            self._logits = (output if place == -1 else output[place]).detach()

    def see_choice(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, object]
    ) -> None:
        """The experts of a router with a bias are called: with hidden states, indices, weights."""
        if self.context.may_count(self.block):
            self._see_choice([*args, *kwargs.values()])

    @eager
    def _see_choice(self, values: list[Any]) -> None:
        logits, self._logits = self._logits, None
        if not self.context.counts(self.found.block):
            return
        chosen = find_choice(values, self.balancer.top_k)
        if chosen is None:
            raise RuntimeError(
                f"{self.name}.experts was called without the indices of the chosen experts"
            )
        self._notice_backward(values[0])
        if self._is_replayed():
            return
        chosen = self._own_choice(chosen)
        if logits is None:
            if self.balancer.needs_scores or self._sharded_experts():
                raise RuntimeError(
                    f"{self.name}'s experts were called, but its gate's logits were not seen"
                )
            self.count_choices(chosen, None, None)
            return
        scores = score_by_name(str(self.found.spec.score))(logits).flatten(0, -2)
        shifted = scores + self.applied_shift.to(scores.device)
        if self._sharded_experts():
            # the indices are local to this rank: choose again
            groups = self.found.spec.groups
            chosen = route(scores, self.balancer.top_k, choose_by=shifted, groups=groups).experts
        self.count_choices(chosen, scores, shifted)

    def see_gate_choice(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, object], output: Any
    ) -> None:
        """The gate of a router with a bias returns, whose experts are called one by one."""
        if self.context.may_count(self.block):
            outputs = output if isinstance(output, tuple | list) else (output,)
            chosen = [value for value in outputs if holds_choice(value, self.balancer.top_k)]
            hidden = [*args, *kwargs.values()][0]
            self._see_choice([hidden, *chosen])

    def run_shifted(self, *args: Any, **kwargs: Any) -> Any:
        """The router's own code, with our top-K: for a router without a bias."""
        run = self._run_and_count if self.context.may_count(self.block) else self._run_shifted
        return run(*args, **kwargs)

    @eager
    def _run_and_count(self, *args: Any, **kwargs: Any) -> Any:
        if self.context.counts(self.block):
            self.count.enter_block()
        self._choices = 0
        answer = self._run_shifted(*args, **kwargs)
        if self._choices > 1:
            raise RuntimeError(
                f"{self.name} chose {self._choices} times in one forward, where once was "
                f"expected: which of them sends tokens to experts is unknown. {TEN_LINES}"
            )
        return answer

    def _run_shifted(self, *args: Any, **kwargs: Any) -> Any:
        assert self._patched is not None
        with ShiftedTopK(self.found.spec, self.applied_shift, self.see_shifted):
            return self.run_exchanged(*args, **kwargs)

    def run_exchanged(self, *args: Any, **kwargs: Any) -> Any:
        """The router's own code, recorded or replayed where that is asked for."""
        assert self._patched is not None
        if self.exchange is None or not self.exchange.active:
            return self._patched.own(*args, **kwargs)
        return self._run_exchange(self.exchange, self._patched.own, *args, **kwargs)

    @eager
    def _run_exchange(
        self, exchange: ChoiceExchange, run: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        older = None
        try:
            if exchange.anticipation is not None and self.block.training:
                self._has_chosen = True
                exchange.anticipation.prepare(run, args, kwargs)
                self._has_chosen = False
                older = exchange.anticipation.choose(run, args, kwargs)
                self._has_chosen = True
            with exchange.begin_run(older):
                answer = run(*args, **kwargs)
        finally:
            self._has_chosen = False
        exchange.finish_run()
        return answer

    def _is_replayed(self) -> bool:
        """Whether the experts of this forward are given, and it is not to be counted."""
        exchange = self.exchange
        if exchange is None or exchange.given is None or exchange.tally_own:
            return False
        self.count.replay_choice()
        self.context.warn_of_rest()
        return True

    def _own_choice(self, chosen: Tensor) -> Tensor:
        """What it would have chosen, where that is to be counted in a replay."""
        exchange = self.exchange
        if exchange is None or exchange.given is None or exchange.own is None:
            return chosen
        return exchange.own

    def see_shifted(self, indices: Tensor, values: Tensor, shifted: Tensor) -> None:
        """A router without a bias has chosen."""
        if (
            not self._has_chosen
            and self.context.may_count(self.block)
            and self.context.counts(self.block)
        ):
            self._choices += 1
            self._notice_backward(values)
            if self._is_replayed():
                return
            scores = values.detach().float().flatten(0, -2)
            self.count_choices(indices, scores, shifted.flatten(0, -2))

    @torch.no_grad()
    def count_choices(self, chosen: Tensor, scores: Tensor | None, shifted: Tensor | None) -> None:
        """Count one call: (..., K) chosen experts, (T, E) scores and shifted scores if known."""
        experts = chosen.reshape(-1, self.balancer.top_k).long()
        padding = self.context.padding(self.name, len(experts))
        groups = self.found.spec.groups
        self.count.add_tally(
            make_tally(
                self.balancer, experts, scores, shifted=shifted, groups=groups, padding=padding
            )
        )
        if self.observer is not None:
            if padding is not None:
                experts = experts[~padding]
                scores = None if scores is None else scores[~padding]
            self.observer(self, experts, scores)

    def before_saving(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        """The model's state_dict is taken: a bias that was cast is put back first."""
        if self.context.attached:
            self.shift.refresh()

    # ---- at a step

    def take_tally(self) -> Tally:
        """All that was counted since the last step; zeros where nothing was."""
        tallies = self.count.take_tallies()
        return sum(tallies, start=0) if tallies else self.balancer.empty_tally()  # type: ignore[return-value]

    @torch.no_grad()
    def update(self, tally: Tally) -> None:
        """Update the balancer, and the model's bias with it."""
        self.balancer.update(tally)
        if self.anneal_left:
            # in a straight line, and to exactly 0
            self.balancer.shift.mul_((self.anneal_left - 1) / self.anneal_left)
            self.anneal_left -= 1
        self.shift.apply()

    def _sharded_experts(self) -> bool:
        return bool(getattr(self.found.experts, "_is_expert_parallel", False))

    def _notice_backward(self, value: Any) -> None:
        if isinstance(value, Tensor) and value.requires_grad and not self.context.backward_seen:
            value.register_hook(self._saw_backward)

    def _saw_backward(self, gradient: Tensor) -> None:
        self.context.backward_seen = True
