"""Checks on tensors, and the switch that says when they run.

Looking at a tensor's values makes a GPU wait, and cannot be done while torch.compile traces. So
there are three modes:

    "auto"    (default) scores on the CPU are checked; scores on an accelerator are not
    "always"  scores are checked wherever they are; on a GPU every route() then waits for it
    "never"   nothing is checked

Set one by `equipoise.check_scores("always")`, for a block by `with
equipoise.check_scores("always"): ...`, or by the environment variable EQUIPOISE_CHECK_SCORES.
Compiled code and the meta device are never checked.

The check costs one sum: a sum is not finite if a term is not. Only then is the place searched.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from types import TracebackType

import torch
from torch import Tensor

_MODES = ("auto", "always", "never")


def _valid_mode(mode: str, source: str) -> str:
    """The same mode, if there is one of this name."""
    if mode not in _MODES:
        raise ValueError(f"{source} must be one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    return mode


_mode = _valid_mode(os.environ.get("EQUIPOISE_CHECK_SCORES", "auto"), "EQUIPOISE_CHECK_SCORES")


class check_scores:  # noqa: N801 - reads as a verb, like torch.set_grad_enabled
    """Set when scores are checked for NaN and infinity: "auto", "always" or "never".

    It is also a context manager.

    Args:
        mode: "auto" checks on the CPU and leaves accelerators alone, which would have to wait.

    Example:
        >>> with equipoise.check_scores("never"):
        ...     equipoise.route(torch.full((2, 4), torch.nan), 1).loads.sum().item()
        2
    """

    def __init__(self, mode: str) -> None:
        global _mode
        self._before = _mode
        _mode = _valid_mode(mode, "the mode of check_scores")

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _mode
        _mode = self._before


def require_tensor(value: object, name: str) -> None:
    """Refuse what is no tensor, such as an array of numpy, before a method of it is missed."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, not {type(value).__module__}.{type(value).__name__}: "
            f"convert it by torch.as_tensor({name})"
        )


def is_readable(tensor: Tensor) -> bool:
    """Whether a value can be read here without a wait: only on the CPU, and not while tracing."""
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu"


def check_choices(experts: Tensor, num_experts: int) -> None:
    """Refuse what are no chosen experts (T, K): 0 to E - 1, or E for none."""
    require_tensor(experts, "experts")
    if experts.dim() != 2 or experts.is_floating_point():
        raise ValueError(
            f"experts must be whole numbers of shape (tokens, top_k), not {experts.dtype} of shape "
            f"{tuple(experts.shape)}: pass Routing.experts"
        )
    if not is_readable(experts) or not experts.numel():
        return
    least, greatest = (int(each) for each in experts.aminmax())
    if least < 0 or greatest > num_experts:
        raise ValueError(
            f"experts are 0 to {num_experts - 1}, or {num_experts} for none, but {least} to "
            f"{greatest} are given"
        )


def scores_are_checked(scores: Tensor) -> bool:
    """Whether the mode asks for a check of these scores, and one is possible."""
    if _mode == "never" or torch.compiler.is_compiling() or scores.is_meta:
        return False
    return _mode == "always" or scores.device.type == "cpu"


def require_finite(values: Tensor, name: str) -> None:
    """Refuse NaN and infinities, with their count and the first place."""
    # as a number of Python's: three operations on a tensor of one cost more than the sum
    if math.isfinite(float(values.sum())):
        return
    bad = ~torch.isfinite(values)
    if not bad.any():
        return  # all finite: only their sum overflowed
    raise ValueError(
        f"{name} hold {int(bad.sum())} values that are NaN or infinite, the first at "
        f"{_first_place(bad)}. This usually means that the router's logits overflowed: compute "
        "scores in float32, and look at the loss before this step"
    )


def require_nonnegative(gates: Tensor) -> None:
    """Refuse gates that have no sum to be divided by."""
    if gates.numel() and gates.min() < 0:
        raise ValueError(
            "renormalize needs scores that are not negative: pass scores (softmax, sigmoid), not "
            "a router's logits"
        )


def require_choosable(ranked: Callable[[], Tensor], first: Tensor, kth: Tensor, top_k: int) -> None:
    """Refuse what cannot be ranked. -inf is allowed in `choose_by`: it forbids an expert to a
    token.

    NaN and +inf come first, so that looking at each token's first choice (T,) is enough; what was
    ranked (T, E) is asked for only where something is wrong.
    """
    total = float(first.sum())
    if math.isnan(total) or total == math.inf:
        values = ranked()
        bad = torch.isnan(values) | (values == torch.inf)
        if bad.any():
            raise ValueError(
                f"choose_by holds {int(bad.sum())} values that are NaN or +inf, the first at "
                f"{_first_place(bad)}. Since the scores are finite, look at the shift that was "
                "added to them"
            )
    if float(kth.sum()) == -math.inf:
        starved = kth == -torch.inf
        if not starved.any():
            return  # all finite: only their sum overflowed
        token = int(starved.nonzero()[0])
        left = int((ranked()[token] > -torch.inf).sum())
        raise ValueError(
            f"token {token} may choose only {left} experts (the others are -inf), but top_k is "
            f"{top_k}"
        )


def require_on_device(truth: Tensor, error: Callable[[], Exception]) -> None:
    """Raise unless true: on the CPU at once, on an accelerator when the device gets there.

    So nothing waits.
    """
    if torch.compiler.is_compiling() or truth.is_meta:
        return
    if not is_readable(truth):
        torch._assert_async(truth, str(error()))
    elif not truth:
        raise error()


def number_if_readable(number: Tensor) -> str:
    """A number for a message, where it can be read without a wait."""
    return str(int(number)) if is_readable(number) else "?"


def _first_place(bad: Tensor) -> str:
    """Where the first true value stands, in words."""
    place = tuple(int(i) for i in bad.nonzero()[0])
    return f"(token {place[0]}, expert {place[1]})" if len(place) == 2 else str(place)
