"""One run of a router under observation: every top-K on the way is kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from equipoise.attach.find.choice_calls import TOPK
from equipoise.attach.find.kernels import own_forward


class TopKCall(NamedTuple):
    """One top-K that a router took."""

    values: Tensor
    """(..., N) what it was taken of"""
    top_k: int
    indices: Tensor = torch.empty(0)


class TopKLog(TorchFunctionMode):
    """Within this mode, every top-K is kept in `calls`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[TopKCall] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func in TOPK:
            named = {**dict(zip(("input", "k"), args)), **(kwargs or {})}
            call = TopKCall(named["input"].detach().clone(), named["k"], answer[1].clone())
            self.calls.append(call)
        return answer


@dataclass
class WatchedRun:
    """What was seen while a router chose."""

    calls: list[TopKCall]
    gate_output: tuple[Any, ...]
    returns_alone: bool
    """whether the gate returns one tensor, and no tuple"""
    choice: tuple[Any, ...]
    """what the experts would be called with, besides the hidden states"""
    in_gate: bool
    """whether the gate's forward made the choice"""


class RouterPath(nn.Module):
    """The way of a token from hidden state to experts, without the experts."""

    def __init__(self, block: nn.Module, gate_name: str) -> None:
        super().__init__()
        self.block = block
        self.gate_name = gate_name

    def forward(self, hidden: Tensor, bias_name: str | None, filled: bool) -> WatchedRun:
        """Choose experts for (T, D) or (B, S, D) hidden states; `filled` gives the gate what else
        it requires.
        """
        gate = getattr(self.block, self.gate_name)
        passed: tuple[Any, ...] = () if bias_name is None else (getattr(self.block, bias_name),)
        if filled:
            passed += _fill_required(gate, hidden, 1 + len(passed))
        with TopKLog() as log:
            # its forward, and not a call: hooks that others put on it are not run
            output = own_forward(gate)(hidden, *passed)
            alone = isinstance(output, Tensor)
            outputs = (output,) if alone else tuple(output)
            route = getattr(self.block, "route_tokens_to_experts", None)
            in_gate = bool(log.calls) or route is None
            choice = (
                outputs
                if in_gate or route is None
                else tuple(route(*_route_arguments(route, hidden, outputs[0])))
            )
        return WatchedRun(log.calls, outputs, alone, choice, in_gate)


def _fill_required(gate: nn.Module, hidden: Tensor, given: int) -> tuple[Tensor | None, ...]:
    """The arguments a gate requires after those given: a mask is True for every token, anything
    else is None.
    """
    names = [
        name
        for name, parameter in inspect.signature(gate.forward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    everything = torch.ones(hidden.shape[:-1], dtype=torch.bool)
    return tuple(everything if "mask" in name else None for name in names[given:])


def _route_arguments(
    route: Callable[..., Any], hidden: Tensor, logits: Tensor
) -> tuple[Tensor, ...]:
    """A block's method takes the logits, or the hidden states and the logits."""
    return (logits,) if len(inspect.signature(route).parameters) == 1 else (hidden, logits)
