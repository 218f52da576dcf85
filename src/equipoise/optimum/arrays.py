"""Names for arrays in the theory's signatures. (`Array` of storage is an array of any type.)"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def centred(values: NDArray[np.floating]) -> Floats:
    """Without their mean: routing does not see a constant added to every shift."""
    return np.asarray(values - values.mean(), np.float64)
