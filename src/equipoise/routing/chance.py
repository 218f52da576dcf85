"""What chance alone leaves of the imbalance, where every expert is as likely as it should be."""

from __future__ import annotations

import numpy as np


def binomial_floor(num_tokens: float, share: np.ndarray) -> float:
    """Mean |load - target| / target of independent tokens, of which a share (E,) takes each expert.

    A load is binomial(T, q_k), so E|A_k - L_k| / L_k is sqrt(2/pi (1 - q_k) / (T q_k)). Tokens of a
    sequence are alike, which leaves more.
    """
    return float(np.sqrt(2 / np.pi * (1 - share) / (num_tokens * share)).mean())
