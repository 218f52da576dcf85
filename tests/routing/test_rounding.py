"""The distance between two numbers of a precision, against the bits of torch's own formats."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.routing.rounding import PRECISIONS, precision_by_name, ulp_at

INTEGERS = {"bf16": torch.int16, "fp16": torch.int16, "fp32": torch.int32}


@pytest.mark.parametrize("name", PRECISIONS)
@given(value=st.floats(-60_000, 60_000))
def test_it_is_the_step_to_the_next_number(name, value):
    precision = PRECISIONS[name]
    here = torch.tensor(abs(value)).to(precision.dtype)
    above = (here.view(INTEGERS[name]) + 1).view(precision.dtype)
    if above.isfinite():
        assert ulp_at(float(here), precision) == float(above) - float(here)


def test_names_of_torch_will_do_and_others_are_refused():
    assert precision_by_name("bfloat16") is PRECISIONS["bf16"]
    assert np.array_equal(ulp_at([1.0, -2.0], PRECISIONS["bf16"]), [2**-7, 2**-6])
    with pytest.raises(ValueError, match=r"no precision 'fp61' \(did you mean 'fp16'\?\)"):
        precision_by_name("fp61")
