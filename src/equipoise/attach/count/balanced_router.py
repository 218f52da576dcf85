"""BalancedRouter: one router of a model, its balancer, and what it has counted since the last step.

A router with a bias is watched: its gate's logits (if the balancer looks at scores) and the indices
its experts are called with, which is the point that stayed the same through all of transformers 5.
A router without one has its top-K shifted (shifted_topk.py), and is counted there. Counts are plain
int64 tensors: a buffer would be broadcast by DDP and cast by .to().
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.attach.count.forward_context import ForwardContext, eager
from equipoise.attach.count.shifted_topk import ShiftedTopK
from equipoise.attach.find.probe import score_by_name
from equipoise.attach.find.routers import FoundRouter
from equipoise.balancing import Dual
from equipoise.routing import Tally, route


class BalancedRouter:
    """One router of a model and its balancer."""

    def __init__(self, found: FoundRouter, balancer: Dual, context: ForwardContext) -> None:
        self.found = found
        self.balancer = balancer
        self.context = context
        self.needs_scores = balancer.needs_scores
        self.tallies: list[Tally] = []
        self.sure = 0
        """how many of them are of forwards that have ended: one that ends in an exception is not
        counted
        """
        self.entered = False
        """whether its block was called in training since the last step"""
        self.seen = False
        """whether it was ever counted"""
        self.anneal_left = 0
        """updates until the shift of a router without a bias is 0"""
        self.observer: Callable[[BalancedRouter, Tensor, Tensor | None], None] | None = None
        """told of every counted forward: for traces"""
        self._logits: Tensor | None = None
        self._handles: list[Any] = []
        self._own_forward: tuple[nn.Module, str, Callable[..., Any]] | None = None
        _check_countable(found, balancer, self.needs_scores)
        with torch.no_grad():
            if found.bias is not None:
                found.bias.check_writable()
                balancer.shift.copy_(found.bias.read())
            self.mean = balancer.shift.double().mean()
            """the loaded bias's mean: it is kept, since a rule that lets it drift ends in large
            numbers with few digits left
            """
            self.applied_shift = balancer.shift.clone()
            """(E,) float32: what the model adds"""

    def __deepcopy__(self, memo: dict[int, Any]) -> BalancedRouter:
        """A copy of a model routes as the model does, and counts nothing: nobody would collect it."""
        twin = memo[id(self)] = copy.copy(self)
        twin.tallies, twin.observer = [], None
        for name in ("found", "balancer", "context", "applied_shift", "_own_forward", "_handles"):
            setattr(twin, name, copy.deepcopy(getattr(self, name), memo))
        return twin

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def offered(self) -> Tensor:
        """The former name of `applied_shift`."""
        warnings.warn("offered is now applied_shift", DeprecationWarning, stacklevel=2)
        return self.applied_shift

    @property
    def frozen(self) -> bool:
        """Whether nothing in its layer trains: then its shift is left alone too, though it is no
        parameter.
        """
        return not any(parameter.requires_grad for parameter in self.found.layer.parameters())

    @property
    def missed(self) -> bool:
        """Whether it trains, and was not counted since the last step although it should have been.

        One that was never counted counts as missed: hooks may be gone around from the start.
        Routers for pictures may rest.
        """
        if self.tallies or not self.found.block.training:
            return False
        return self.entered or not (self.seen or self.name.endswith("vision_moe"))

    # ---- attaching and detaching

    def attach(self) -> None:
        found = self.found
        if found.bias is None:
            owner, method = (
                (found.gate, "forward")
                if found.spec.in_gate
                else (found.block, "route_tokens_to_experts")
            )
            self._own_forward = (owner, method, getattr(owner, method))
            self._was_patched = method in vars(owner)  # accelerate does so too
            setattr(owner, method, self.run_shifted)
            return
        found.bias.write(self.applied_shift)
        self.mark = found.bias.mark
        self._handles = [
            found.block.register_forward_pre_hook(self.enter_block),
            found.experts.register_forward_pre_hook(self.see_choice, with_kwargs=True),
            found.bias.owner.register_state_dict_pre_hook(self.before_saving),
        ]
        if found.spec.logits_at is not None:
            self._handles.append(found.gate.register_forward_hook(self.see_logits))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._own_forward is not None:
            owner, method, own = self._own_forward
            if self._was_patched:
                setattr(owner, method, own)
            else:
                delattr(owner, method)  # the class's own is behind it
        self._handles, self._own_forward, self.tallies = [], None, []

    # ---- what is seen in a forward

    @eager
    def enter_block(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.entered = self.entered or self.context.counts(module)

    @eager
    def see_logits(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        place = self.found.spec.logits_at
        if place is not None and (self.needs_scores or self.observer or self._sharded_experts()):
            self._logits = (output if place == -1 else output[place]).detach()

    @eager
    def see_choice(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        logits, self._logits = self._logits, None
        if not self.context.counts(self.found.block):
            return
        values = [*args, *kwargs.values()]
        chosen = next(
            (
                value
                for value in values
                if isinstance(value, Tensor) and not value.is_floating_point()
            ),
            None,
        )
        if chosen is None:
            raise RuntimeError(
                f"{self.name}.experts was called without the indices of the chosen experts"
            )
        self._notice_backward(values[0])
        bias = self.found.bias
        assert bias is not None
        if logits is None:
            if self.needs_scores or self._sharded_experts():
                raise RuntimeError(
                    f"{self.name}'s experts were called, but its gate's logits were not seen"
                )
            self.count(chosen, None, None)
            return
        scores = score_by_name(str(self.found.spec.score))(logits).flatten(0, -2)
        shifted = scores + self.applied_shift.to(scores.device)
        if self._sharded_experts():  # its indices are local to this rank: choose again
            chosen = route(
                scores, self.balancer.top_k, choose_by=shifted, groups=self.found.spec.groups
            ).experts
        self.count(chosen, scores, shifted)

    @eager
    def run_shifted(self, *args: Any, **kwargs: Any) -> Any:
        """The router's own code, with our top-K."""
        assert self._own_forward is not None
        with ShiftedTopK(self.found.spec, self.applied_shift, self.see_shifted):
            return self._own_forward[2](*args, **kwargs)

    def see_shifted(self, indices: Tensor, values: Tensor, shifted: Tensor) -> None:
        if self.context.counts(self.found.block):
            self._notice_backward(values)
            self.count(indices, values.detach().float().flatten(0, -2), shifted.flatten(0, -2))

    @torch.no_grad()
    def count(self, chosen: Tensor, scores: Tensor | None, shifted: Tensor | None) -> None:
        experts = chosen.reshape(-1, self.balancer.top_k).long()
        padding = self.context.padding(self.name, len(experts))
        loads = _count_loads(experts, self.balancer.num_experts, padding)
        if self.balancer.steps.device != loads.device:
            self.balancer.to(loads.device)
        if not self.needs_scores or scores is None:
            self.tallies.append(Tally(loads, loads.unsqueeze(0), self.balancer.steps.clone()))
        else:
            groups = self.found.spec.groups
            routing = route(
                scores, self.balancer.top_k, choose_by=shifted, groups=groups, mask=padding
            )
            # what was chosen is what the model chose: on ties, and in bf16, we might have chosen
            # otherwise
            self.tallies.append(
                self.balancer.tally(scores, routing._replace(experts=experts, loads=loads))
            )
        self.entered = self.seen = True
        if self.observer is not None:
            self.observer(
                self,
                experts if padding is None else experts[~padding],
                _drop_padding(scores, padding),
            )

    def begin(self) -> None:
        """A training forward begins."""
        self.sure = len(self.tallies)
        self.refresh()

    def fail(self) -> None:
        """It ended in an exception: what was counted on the way is taken back."""
        del self.tallies[self.sure :]
        self.entered = bool(self.tallies)

    # ---- what is done at a step

    def take_tally(self) -> Tally:
        """All that was counted since the last step; zeros where nothing was."""
        tallies, self.tallies, self.entered = self.tallies, [], False
        return sum(tallies, start=0) if tallies else self._nothing()  # type: ignore[return-value]

    def drop(self) -> None:
        self.tallies, self.entered = [], False

    @torch.no_grad()
    def update(self, tally: Tally) -> None:
        """Update the balancer, and tell the model."""
        self.balancer.update(tally)
        if self.anneal_left:
            self.balancer.shift.mul_(
                (self.anneal_left - 1) / self.anneal_left
            )  # in a straight line, and to exactly 0
            self.anneal_left -= 1
        self.apply_shift()

    @torch.no_grad()
    def set_shift(self, shift: Tensor) -> None:
        """Let the model route by this shift."""
        self.balancer.shift.copy_(shift)
        self.apply_shift()

    @torch.no_grad()
    def apply_shift(self) -> None:
        shift = self.balancer.shift
        self.applied_shift = shift + (self.mean.to(shift.device) - shift.double().mean()).float()
        if self.found.bias is not None:
            self.found.bias.write(self.applied_shift)
            self.mark = self.found.bias.mark

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what others wrote into the model's bias: a checkpoint that was loaded, a cast,
        a move to a device.

        Where the bias is only what we wrote, rounded to another dtype, the unrounded one is put
        back. Nothing waits for a GPU.
        """
        bias = self.found.bias
        if bias is None or self.mark == bias.mark:
            return
        values = bias.read()
        self.balancer.to(values.device)
        applied_shift = self.applied_shift.to(values.device)
        ours = (values == applied_shift.to(bias.dtype).float()).all()
        self.balancer.shift.copy_(torch.where(ours, self.balancer.shift, values))
        self.mean = torch.where(ours, self.mean.to(values.device), values.double().mean())
        self.applied_shift = torch.where(ours, applied_shift, values)
        bias.write(self.applied_shift)
        self.mark = bias.mark

    def before_saving(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        if self.context.live:
            self.refresh()

    # ---- small things

    def _nothing(self) -> Tally:
        scores = torch.zeros(0, self.balancer.num_experts, device=self.balancer.steps.device)
        return self.balancer.tally(scores, route(scores, self.balancer.top_k, runner_up=True))

    def _sharded_experts(self) -> bool:
        return bool(getattr(self.found.experts, "_is_expert_parallel", False))

    def _notice_backward(self, value: Any) -> None:
        if isinstance(value, Tensor) and value.requires_grad and not self.context.backward_seen:
            value.register_hook(self._saw_backward)

    def _saw_backward(self, gradient: Tensor) -> None:
        self.context.backward_seen = True


def _count_loads(experts: Tensor, num_experts: int, padding: Tensor | None) -> Tensor:
    counted = (
        torch.ones_like(experts)
        if padding is None
        else (~padding).long().unsqueeze(1).expand_as(experts)
    )
    loads = torch.zeros(num_experts, dtype=torch.int64, device=experts.device)
    return loads.scatter_add_(0, experts.flatten(), counted.flatten())


def _drop_padding(scores: Tensor | None, padding: Tensor | None) -> Tensor | None:
    return scores if scores is None or padding is None else scores[~padding]


def _check_countable(found: FoundRouter, balancer: Dual, needs_scores: bool) -> None:
    spec = found.spec
    if not needs_scores:
        return
    if found.bias is not None and spec.logits_at is None:
        raise ValueError(
            f"this balancer looks at scores, but {found.name}'s gate does not return its logits "
            "in this transformers: choose "
            "one that needs loads only (deepseek, proportional, moonlight ...), or upgrade "
            "transformers"
        )
    if spec.groups is not None and (spec.group_worth != "top2" or found.bias is None):
        raise ValueError(
            f"this balancer looks at scores, but {found.name} chooses its groups in a way that "
            "cannot be followed: choose one "
            "that needs loads only (deepseek, proportional, moonlight ...)"
        )
