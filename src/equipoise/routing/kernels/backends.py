"""Which back end runs an operator: chosen by the tensor's device, by code or by the environment.

    "auto"        (default) "processor" on the CPU, "triton" on a CUDA device, else "reference"
    "reference"   plain torch, on any device
    "processor"   numba kernels, for float32, bfloat16 and float16 on the CPU
    "triton"      Triton kernels, for these types on a CUDA device, to 4,096 experts and K = 32
                  (on the CPU only in Triton's interpreter, TRITON_INTERPRET=1, for tests)

Set one by `equipoise.kernels("reference")`, for a block by `with equipoise.kernels(...)`, or by the
environment variable EQUIPOISE_KERNELS. What a back end cannot do falls to the reference; where a
back end was asked for by name, the log says so once.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from types import TracebackType

import torch
from torch import Tensor

_NAMES = ("auto", "reference", "processor", "triton")
_log = logging.getLogger("equipoise.kernels")
_told: set[str] = set()


def _valid_name(name: str, source: str) -> str:
    """The same name, if there is such a back end."""
    if name not in _NAMES:
        raise ValueError(f"{source} must be one of {', '.join(map(repr, _NAMES))}, not {name!r}")
    return name


_chosen = _valid_name(os.environ.get("EQUIPOISE_KERNELS", "auto"), "EQUIPOISE_KERNELS")


class kernels:  # noqa: N801 - reads as a setting, like equipoise.check_scores
    """Set the back end of routing: "auto", "reference", "processor" or "triton".

    It is also a context manager.

    Example:
        >>> with kernels("reference"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        global _chosen
        self._before = _chosen
        _chosen = _valid_name(name, "the back end of kernels")

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _chosen
        _chosen = self._before


_LIFTED = (torch.float32, torch.bfloat16, torch.float16)
"""what kernels take: sums with the shift are formed in float32"""
_MOST_EXPERTS, _MOST_WANTED = 4096, 33


def backend_for(scores: Tensor, wanted: int, *others: Tensor | None) -> str:
    """The name of the back end that takes these scores, and other tensors beside them.

    Args:
        scores: (T, E).
        wanted: how many experts of a token are ranked.
    """
    device = scores.device.type
    name = _chosen
    if name == "auto":
        name = {"cpu": "processor", "cuda": "triton"}.get(device, "reference")
    if name == "reference":
        return name
    if name == "processor" and device == "cpu" and _is_lifted(scores, others):
        return name
    reason = _cannot_take(name, device, scores, wanted, others)
    if reason is None:
        return name
    if _chosen != "auto" and reason not in _told:
        _told.add(reason)
        _log.warning("the back end %r does not take %s: the reference does", name, reason)
    return "reference"


def _is_lifted(scores: Tensor, others: tuple[Tensor | None, ...]) -> bool:
    """Whether nothing here needs more than float32."""
    return scores.dtype in _LIFTED and not any(
        each is not None and each.dtype is torch.float64 for each in others
    )


def _cannot_take(
    name: str, device: str, scores: Tensor, wanted: int, others: tuple[Tensor | None, ...]
) -> str | None:
    """What about these tensors a back end has no kernel for; None where it has one."""
    if not _is_lifted(scores, others):
        return f"scores in {torch.float64 if scores.dtype in _LIFTED else scores.dtype}"
    if name == "processor":
        return None if device == "cpu" else f"scores on {device}"
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"scores on {device}"
    if scores.shape[1] > _MOST_EXPERTS or wanted > _MOST_WANTED:
        return f"{scores.shape[1]} experts and K = {wanted - 1}"
    return None if _has_triton() else "anything where triton is not installed"


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
