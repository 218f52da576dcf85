"""Probe: learn how a router chooses by watching it choose, not by knowing its class.

A router of transformers ends in one `topk` over its experts. So a tiny batch of random tokens is
sent through it, on the CPU and with random weights in place of its own, while every top-K on the
way is watched:

    ranked = what the last top-K was taken of         its width is E, its k is K
    ranked moves by d when a tensor moves by d        that tensor is the correction bias
    ranked - bias = f(logits)                         f is the score function
    a top-K over (T, G), after one over (T, G, E/G)   experts lie in G groups

Nothing of the model is touched, and it may live on any device, the meta device included, or be
sharded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from equipoise.routing import Groups, score_function

TOPK = (torch.topk, torch.Tensor.topk)
_PROBE_TOKENS = 64
_TOLERANCE = 1e-5
_PROBED_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": score_function("sigmoid"),
    "softmax": score_function("softmax"),
    "sqrt_softplus": score_function("sqrt_softplus"),
    "identity": lambda logits: logits.float(),
}


class NotByTopKError(ValueError):
    """A router that was watched and did not choose by a top-K over its experts."""


@dataclass(frozen=True)
class RoutingSpec:
    """How a router chooses."""

    num_experts: int
    """E, of the top-K: may exceed the experts that exist (longcat_flash's zero-experts)"""
    top_k: int
    groups: Groups | None
    """None where every group is kept"""
    group_worth: str | None
    """what a group is chosen by: "top2" of its scores, as `route` does, or "other" """
    fill: float | None
    """what scores outside the chosen groups are set to: -inf, or 0 in older transformers"""
    score: str | None
    """the score function that leads from the logits to what is ranked; None where it was not
    recognised
    """
    logits_at: int | None
    """which of the gate's outputs holds the logits; -1 where it returns them alone; None where it
    does not return them
    """
    bias: str | None
    """the block's tensor that is added before the choice"""
    in_gate: bool
    """whether the choice is made by the gate's forward, or by the block's `route_tokens_to_experts`
    """
    passed: bool
    """whether the block passes the bias to the gate as an argument"""


def score_by_name(name: str) -> Callable[[Tensor], Tensor]:
    """A score function that a probe recognised; "identity" ranks what the gate returns as it is."""
    return _PROBED_SCORES[name]


def probe_router(block: nn.Module, gate_name: str) -> RoutingSpec:
    """Watch the router `gate_name` of `block` choose. Raises NotByTopKError where it does so in
    another way.
    """
    return _Probe(block, gate_name).conclude()


class _TopKLog(TorchFunctionMode):
    """Keeps (input, k, indices) of every top-K."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, int, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func in TOPK:
            named = {**dict(zip(("input", "k"), args)), **(kwargs or {})}
            self.seen.append((named["input"].detach().clone(), named["k"], answer[1].clone()))
        return answer


@dataclass
class _ProbeRun:
    seen: list[tuple[Tensor, int, Tensor]]
    gate_output: tuple[Any, ...]
    alone: bool
    choice: tuple[Any, ...]
    in_gate: bool


class _RouterPath(nn.Module):
    """The way of a token from hidden state to experts, without the experts."""

    def __init__(self, block: nn.Module, gate_name: str) -> None:
        super().__init__()
        self.block = block
        self.gate_name = gate_name

    def forward(self, hidden: Tensor, bias_name: str | None) -> _ProbeRun:
        gate = getattr(self.block, self.gate_name)
        passed = () if bias_name is None else (getattr(self.block, bias_name),)
        with _TopKLog() as watch:
            output = gate.forward(hidden, *passed)  # past the hooks that others may have put on it
            alone = isinstance(output, Tensor)
            outputs = (output,) if alone else tuple(output)
            route = getattr(self.block, "route_tokens_to_experts", None)
            in_gate = bool(watch.seen) or route is None
            choice = (
                outputs
                if in_gate or route is None
                else tuple(route(*_route_arguments(route, hidden, outputs[0])))
            )
        return _ProbeRun(watch.seen, outputs, alone, choice, in_gate)


class _Probe:
    def __init__(self, block: nn.Module, gate_name: str) -> None:
        self.stage = _RouterPath(block, gate_name)
        self.gate_name = gate_name
        self.rng = torch.Generator().manual_seed(0)
        self.tensors = self._random_tensors(block, getattr(block, gate_name))
        width = _hidden_size(getattr(block, gate_name))
        self.hidden = torch.randn(_PROBE_TOKENS, width, generator=self.rng)
        self.passed: str | None = None

    def conclude(self) -> RoutingSpec:
        first = self._first_run()
        ranked, top_k, indices = self._last_topk(first)
        num_experts = ranked.shape[-1]
        kept = _is_score(ranked)
        bias = self._find_bias(first, ranked, kept)
        self._check_choice(first, indices)
        if bias is not None:
            self._check_last_class(bias)
        score, logits_at = self._find_score(first, ranked, kept, bias)
        groups, worth = _find_groups(first.seen, num_experts)
        fill = None if kept.all() else float(ranked[~kept][0])
        name = None if bias is None else bias.removeprefix("block.")
        return RoutingSpec(
            num_experts,
            top_k,
            groups,
            worth,
            fill,
            score,
            logits_at,
            name,
            first.in_gate,
            self.passed is not None,
        )

    def _random_tensors(self, block: nn.Module, gate: nn.Module) -> dict[str, Tensor]:
        """Random stand-ins for all the gate holds, and for the block's own short vectors."""
        prefix = f"block.{self.gate_name}."
        named = {prefix + name: value for name, value in _named_tensors(gate, recurse=True)}
        named |= {f"block.{name}": value for name, value in _named_tensors(block, recurse=False)}
        return {name: self._random(value) for name, value in named.items()}

    def _random(self, value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return torch.zeros(value.shape, dtype=value.dtype)
        spread = 0.1 if value.dim() < 2 or value.shape[0] == 1 else 2 * value.shape[-1] ** -0.5
        return spread * torch.randn(value.shape, generator=self.rng)

    def _run(self, hidden: Tensor, tensors: dict[str, Tensor]) -> _ProbeRun:
        was_training = [module for module in self.stage.modules() if module.training]
        try:
            for module in was_training:
                module.training = False
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                return functional_call(self.stage, tensors, (hidden.clone(), self.passed))
        finally:
            for module in was_training:
                module.training = True

    def _first_run(self) -> _ProbeRun:
        """Some gates want (T, D), some (B, S, D); some are given the bias by their block."""
        vectors = [name.removeprefix("block.") for name in self.tensors if name.count(".") == 1]
        refusals = []
        for passed in (None, *vectors):
            for hidden in (self.hidden, self.hidden.unsqueeze(0)):
                self.passed = passed
                try:
                    outcome = self._run(hidden, self.tensors)
                except (TypeError, ValueError, RuntimeError, IndexError) as error:
                    refusals.append(f"{type(error).__name__}: {error}")
                    continue
                self.hidden = hidden
                return outcome
        raise NotByTopKError(f"it could not be called with hidden states alone ({refusals[0]})")

    def _last_topk(self, outcome: _ProbeRun) -> tuple[Tensor, int, Tensor]:
        if not outcome.seen:
            raise NotByTopKError("it chooses without torch.topk")
        ranked, top_k, indices = outcome.seen[-1]
        return ranked.flatten(0, -2).float(), top_k, indices.flatten(0, -2)

    def _find_bias(self, first: _ProbeRun, ranked: Tensor, kept: Tensor) -> str | None:
        """Move every vector of E numbers in turn: `ranked` follows the bias number by number, and
        no gate follows it.

        gpt_oss has a bias inside its logits, which moves the gates too: that is not one to balance
        with.
        """
        found = [
            name
            for name, value in self.tensors.items()
            if value.is_floating_point()
            and value.numel() == ranked.shape[-1]
            and self._follows(name, first, ranked, kept)
        ]
        if len(found) > 1:
            raise ValueError(
                f"{len(found)} tensors act as the bias of one router: {', '.join(found)}"
            )
        return found[0] if found else None

    def _follows(self, name: str, first: _ProbeRun, ranked: Tensor, kept: Tensor) -> bool:
        nudge = 0.01 * torch.randn(self.tensors[name].shape, generator=self.rng)
        second = self._run(self.hidden, {**self.tensors, name: self.tensors[name] + nudge})
        moved, _, indices = self._last_topk(second)
        both = kept & _is_score(moved)
        if ((moved - ranked - nudge.flatten()).abs()[both] > _TOLERANCE).any():
            return False
        same = (indices == self._last_topk(first)[2]).all(1)
        outputs = zip((*first.gate_output, *first.choice), (*second.gate_output, *second.choice))
        return all(_same_rows(before, after, same) for before, after in outputs)

    def _find_score(
        self, outcome: _ProbeRun, ranked: Tensor, kept: Tensor, bias: str | None
    ) -> tuple[str | None, int | None]:
        scores = ranked if bias is None else ranked - self.tensors[bias].flatten()
        for place, output in enumerate(outcome.gate_output):
            if (
                not isinstance(output, Tensor)
                or output.shape[-1] != ranked.shape[-1]
                or output.numel() != ranked.numel()
            ):
                continue
            for name, function in _PROBED_SCORES.items():
                if (
                    (function(output.reshape(ranked.shape)) - scores).abs()[kept] < _TOLERANCE
                ).all():
                    return name, (-1 if outcome.alone else place)
        return None, None

    def _check_last_class(self, bias: str) -> None:
        """Let everybody choose the last class, where those that are no experts stand."""
        raised = self.tensors[bias].clone()
        raised.view(-1)[-1] += 10.0
        outcome = self._run(self.hidden, {**self.tensors, bias: raised})
        self._check_choice(outcome, self._last_topk(outcome)[2])

    def _check_choice(self, outcome: _ProbeRun, indices: Tensor) -> None:
        """What is handed to the experts must be what the top-K chose: zaya rewrites it, and would
        be counted wrongly.
        """
        for output in outcome.choice:
            if isinstance(output, Tensor) and output.dtype in (torch.int64, torch.int32):
                if not torch.equal(output.reshape(indices.shape).long(), indices):
                    raise NotByTopKError("it rewrites its choice after the top-K")
                return


def _route_arguments(
    route: Callable[..., Any], hidden: Tensor, logits: Tensor
) -> tuple[Tensor, ...]:
    """A block's method takes the logits, or the hidden states and the logits."""
    return (logits,) if len(inspect.signature(route).parameters) == 1 else (hidden, logits)


def _named_tensors(module: nn.Module, recurse: bool) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]


def _same_rows(before: object, after: object, rows: Tensor) -> bool:
    """Whether a gate's output stayed the same for the tokens that kept their experts."""
    if (
        not isinstance(before, Tensor)
        or not isinstance(after, Tensor)
        or before.numel() % len(rows)
    ):
        return True
    return bool(
        torch.equal(before.reshape(len(rows), -1)[rows], after.reshape(len(rows), -1)[rows])
    )


def _hidden_size(gate: nn.Module) -> int:
    for name in ("hidden_dim", "hidden_size"):
        if isinstance(getattr(gate, name, None), int):
            return int(getattr(gate, name))
    for _, value in _named_tensors(gate, recurse=True):
        if value.dim() == 2 and value.is_floating_point() and value.shape[0] > 1:
            return value.shape[1]
    raise NotByTopKError("it holds no matrix that could turn hidden states into logits")


def _is_score(ranked: Tensor) -> Tensor:
    """Where a score stands, and not the -inf or 0 of a group that was not chosen."""
    return torch.isfinite(ranked) & (ranked != 0)


def _find_groups(
    seen: list[tuple[Tensor, int, Tensor]], num_experts: int
) -> tuple[Groups | None, str | None]:
    for place, (values, keep, _) in enumerate(seen[:-1]):
        number = values.shape[-1]
        if values.dim() == 2 and number < num_experts and num_experts % number == 0:
            before = seen[place - 1] if place else None
            inside = (
                before is not None
                and before[0].shape[-2:] == (number, num_experts // number)
                and before[1] == 2
            )
            return (None if keep == number else Groups(number, keep)), (
                "top2" if inside else "other"
            )
    return None, None
