"""What all of the theory's arrays share."""

import numpy as np

from equipoise.optimum.arrays import centred


def test_centred_values_have_no_mean():
    values = np.array([1.0, 2.0, 6.0], np.float32)
    found = centred(values)
    assert found.tolist() == [-2.0, -1.0, 3.0]
    assert found.dtype == np.float64
    assert values.tolist() == [1.0, 2.0, 6.0]
