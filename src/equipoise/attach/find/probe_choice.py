"""Probe a module of one's own: run it on random tokens until it has chosen, and see of how many.

    61 tokens in, 61 rows of E scores in a call that takes the K largest     E, K, and by which call

It is run on the CPU, without gradients, with random numbers in place of its tensors, and only up to
the first matrix product after the choice: experts are not run. Unlike probe.py it learns nothing of
a bias: a bias of the module's own stays where it is, and the shift is added to what it ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from equipoise.attach.find.choice_calls import FORMS, ChoiceCall, read_choice
from equipoise.attach.find.probe import NotByTopKError, find_groups
from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.attach.find.stand_ins import stand_ins
from equipoise.attach.find.watched_run import TopKCall

_TOKENS = 61
"""a number that is no layer's own size: so a choice over tokens is not taken for one of experts"""
_LARGE = 2**22
_RAN = "it ran to its end"
_MOST_WIDTHS = 12
_WIDTH_NAMES = ("hidden_size", "hidden_dim", "d_model", "n_embd", "embed_dim", "n_embed", "dim")
_PRODUCTS = (
    F.linear,
    torch.matmul,
    torch.mm,
    torch.bmm,
    torch.addmm,
    torch.baddbmm,
    torch.einsum,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.Tensor.mm,
    torch.Tensor.bmm,
)


class _ChoiceMadeError(Exception):
    """Ends a run: what comes after the choice is not run."""


class _ChoiceLog(TorchFunctionMode):
    """Within this mode every choice is kept in `calls`, until the run has begun to use it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[ChoiceCall] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS and any(call.form != "max" for call in self.calls):
            raise _ChoiceMadeError
        choice = read_choice(func, args, kwargs or {})
        if choice is not None:
            self.calls.append(choice._replace(values=choice.values.detach().clone()))
        return func(*args, **(kwargs or {}))


def probe_choice(module: nn.Module) -> RoutingSpec:
    """How a module chooses. Raises NotByTopKError where it does not, or not once."""
    reasons: list[str] = []
    for hidden in _possible_inputs(module):
        calls, reason = _choices_of_run(module, hidden)
        over_tokens = [call for call in calls if _is_over_experts(call)]
        if over_tokens:
            return _spec_of(over_tokens, calls)
        reasons.insert(0 if reason == _RAN else len(reasons), reason)
    raise NotByTopKError(
        "no call of topk, argmax or max over (tokens, experts) was seen when it was run on random "
        f"hidden states ({reasons[0] if reasons else 'it has no matrix to tell their width by'})"
    )


def _is_over_experts(call: ChoiceCall) -> bool:
    """Whether every token has a row of its own, and experts to choose from."""
    width = call.values.shape[-1]
    return width not in (0, _TOKENS) and call.values.numel() == _TOKENS * width > _TOKENS


def _spec_of(over_tokens: list[ChoiceCall], calls: list[ChoiceCall]) -> RoutingSpec:
    form = next(form for form in FORMS if any(call.form == form for call in over_tokens))
    topk = [call for call in over_tokens if call.form == form]
    chosen = topk[-1]
    num_experts = chosen.values.shape[-1]
    alike = [call for call in topk if call.values.shape[-1] == num_experts]
    if len(alike) > 1:
        raise NotByTopKError(
            f"it takes {len(alike)} choices over its {num_experts} experts, one after another, "
            "where one is expected to make the whole choice"
        )
    leading = chosen.values.dim() - 2
    logged = [
        TopKCall(call.values.flatten(0, leading), call.top_k)
        for call in calls
        if call.form == "topk"
    ]
    groups, worth = find_groups(logged, num_experts) if form == "topk" else (None, None)
    ranked = chosen.values
    outside = ranked[~torch.isfinite(ranked) | (ranked == 0)]
    return RoutingSpec(
        num_experts=num_experts,
        top_k=chosen.top_k,
        groups=groups,
        group_worth=worth,
        fill=float(outside[0]) if groups is not None and len(outside) else None,
        score=None,
        logits_at=None,
        bias=None,
        in_gate=True,
        passed=False,
        form=form,
    )


def _choices_of_run(module: nn.Module, hidden: Tensor) -> tuple[list[ChoiceCall], str]:
    """The choices on the way, and why the run ended where it did."""
    was_training = [each for each in module.modules() if each.training]
    log = _ChoiceLog()
    try:
        for each in was_training:
            each.training = False
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            torch.autocast("cpu", enabled=False),
        ):
            torch.manual_seed(0)
            tensors = {name: _stand_in(value) for name, value in _tensors_of(module)}
            # its forward, and not a call: hooks that others put on it are not run
            with stand_ins(module, tensors), log:
                module.forward(hidden.clone())
        return log.calls, _RAN
    except _ChoiceMadeError:
        return log.calls, ""
    except Exception as error:  # a stranger's code may raise anything
        return log.calls, f"{type(error).__name__}: {error}"
    finally:
        for each in was_training:
            each.training = True


def _stand_in(value: Tensor) -> Tensor:
    """Random numbers of its shape on the CPU; large ones repeat a row, and take no memory."""
    if not value.is_floating_point():
        return torch.zeros(value.shape, dtype=value.dtype)
    spread = value.shape[-1] ** -0.5 if value.dim() > 1 else 0.1
    if value.numel() > _LARGE:
        return (spread * torch.randn(value.shape[-1])).expand(value.shape)
    return spread * torch.randn(value.shape)


def _possible_inputs(module: nn.Module) -> Iterator[Tensor]:
    """Hidden states that it may take: (1, T, D) or (T, D), of widths that its parts suggest."""
    rng = torch.Generator().manual_seed(0)
    for width in _possible_widths(module)[:_MOST_WIDTHS]:
        hidden = torch.randn(_TOKENS, width, generator=rng)
        yield from (hidden.unsqueeze(0), hidden)


def _possible_widths(module: nn.Module) -> list[int]:
    named = [getattr(module, name, None) for name in _WIDTH_NAMES]
    sides = [
        side
        for _, value in _tensors_of(module)
        if value.dim() >= 2
        for side in (value.shape[-1], value.shape[-2])
    ]
    # of many experts' equal matrices, each side once
    return list(dict.fromkeys(side for side in [*named, *sides] if isinstance(side, int)))


def _tensors_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """All its parameters and buffers; those that are shared by several modules in each of them."""
    return [
        (f"{path}.{name}" if path else name, value)
        for path, each in module.named_modules()
        for held in (each._parameters, each._buffers)
        for name, value in held.items()
        if value is not None
    ]
