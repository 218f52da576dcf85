"""policy_mismatch: how far the trainer's policy is from the engine's, token by token.

An engine samples tokens x with log-probabilities log q(x), a trainer computes log p(x) of the same
tokens. With r = p / q,

    k1 = -log r                 unbiased for KL(q || p), but large of either sign
    k3 = r - 1 - log r          unbiased too, never negative (Schulman, 2020)

Other experts show as a few tokens with extreme ratios long before the mean moves, so their share is
told apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


@dataclass(frozen=True)
class PolicyMismatch:
    """Of all tokens that count."""

    tokens: int
    k1: float
    """mean of log q - log p"""
    k3: float
    """mean of r - 1 - log r"""
    extreme_share: float
    """share of tokens with r or 1 / r above `extreme`"""
    largest_ratio: float
    """of r or 1 / r, whichever is larger"""


def policy_mismatch(
    trainer: ArrayLike | Tensor,
    engine: ArrayLike | Tensor,
    counted: ArrayLike | Tensor | None = None,
    *,
    extreme: float = 2.0,
) -> PolicyMismatch:
    """Compare the log-probabilities of the tokens that an engine sampled.

    Args:
        trainer: (...) log p of each token, in any shape.
        engine: (...) log q of the same tokens, as the engine returned them.
        counted: (...) bool, True where a token is compared: those of completions. By default all.
        extreme: a ratio above which, or below one over which, a token is extreme.

    Example:
        >>> found = equipoise.policy_mismatch([-1.0, -2.0], [-1.0, -3.0])
        >>> found.extreme_share, round(found.k3, 4)
        (0.5, 0.3591)
    """
    if not extreme > 1:
        raise ValueError(f"extreme is a ratio above 1, not {extreme}")
    ours, theirs = _as_floats(trainer), _as_floats(engine)
    if ours.shape != theirs.shape:
        raise ValueError(
            f"log-probabilities of shape {ours.shape} and {theirs.shape} are given: they must be "
            "of the same tokens"
        )
    kept = np.ones(ours.shape, bool) if counted is None else _as_floats(counted) != 0
    if kept.shape != ours.shape:
        raise ValueError(f"counted has shape {kept.shape}, and the tokens {ours.shape}")
    logs = (ours - theirs)[kept]
    if not len(logs):
        raise ValueError("no token is compared: counted is False everywhere")
    if not np.isfinite(logs).all():
        bad = int((~np.isfinite(logs)).sum())
        raise ValueError(f"{bad} of {len(logs)} tokens have a log-probability that is no number")
    largest = float(np.abs(logs).max())
    return PolicyMismatch(
        tokens=len(logs),
        k1=float(-logs.mean()),
        k3=float(_k3_of(logs).mean()),
        extreme_share=float((np.abs(logs) > np.log(extreme)).mean()),
        largest_ratio=float(np.exp(np.float64(largest))) if largest < 709 else float("inf"),
    )


def _k3_of(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(x) - 1 - x, by its series where the difference would lose its digits."""
    with np.errstate(over="ignore"):
        direct = np.expm1(logs) - logs
    series = logs**2 / 2 * (1 + logs / 3 * (1 + logs / 4))
    return np.where(np.abs(logs) < 1e-3, series, direct)


def _as_floats(values: ArrayLike | Tensor) -> NDArray[np.float64]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, np.float64)
