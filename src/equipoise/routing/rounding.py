"""Rounding: how far apart the numbers of a precision lie.

Two scores closer than that may become one number, and then the lower index wins and not the better
expert. An ulp (unit in the last place) at x is the distance of x to the next number above it:

    ulp(x) = 2^(floor(log2 |x|) - digits)        digits: 7 of bf16, 10 of fp16, 23 of fp32
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from equipoise.storage.suggestions import did_you_mean


class Precision(NamedTuple):
    """A floating-point format."""

    name: str
    dtype: torch.dtype
    digits: int
    """binary ones after the leading one"""
    least_exponent: int
    """of the smallest normal number; below it all numbers lie equally far apart"""


PRECISIONS = {
    each.name: each
    for each in (
        Precision("bf16", torch.bfloat16, 7, -126),
        Precision("fp16", torch.float16, 10, -14),
        Precision("fp32", torch.float32, 23, -126),
    )
}
_LONG_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def precision_by_name(name: str) -> Precision:
    """bf16, fp16 or fp32; torch's names of them will do."""
    short = _LONG_NAMES.get(name, name)
    if short not in PRECISIONS:
        raise ValueError(
            f"no precision {name!r}{did_you_mean(name, [*PRECISIONS, *_LONG_NAMES])}: there are "
            f"{', '.join(PRECISIONS)}"
        )
    return PRECISIONS[short]


def ulp_at(values: ArrayLike, precision: Precision) -> NDArray[np.float64]:
    """The distance from each value to the next number of this precision.

    Example:
        >>> ulp_at([1.0, 0.3, -5.0], PRECISIONS["bf16"]).tolist()
        [0.0078125, 0.001953125, 0.03125]
    """
    exponents = np.frexp(np.abs(np.asarray(values, np.float64)))[1] - 1
    exponents = np.maximum(exponents, precision.least_exponent)
    # 0 has an exponent of its own in frexp
    exponents = np.where(np.asarray(values) == 0, precision.least_exponent, exponents)
    return np.ldexp(1.0, exponents - precision.digits)
