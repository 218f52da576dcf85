"""RMSNorm against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from equipoise.model.norm import RMSNorm


def norm(size=8, dtype=torch.float64):
    layer = RMSNorm(size, 1e-6).to(dtype)
    torch.nn.init.normal_(layer.weight)
    return layer


@pytest.mark.parametrize("shape", [(8,), (5, 8), (2, 3, 8), (0, 8)])
def test_torch_agrees(shape):
    layer, hidden = norm(), torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(layer(hidden), F.rms_norm(hidden, (8,), layer.weight, 1e-6))


def test_the_gradient_is_the_slope():
    layer, hidden = norm(), torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(layer, {"weight": w}, x), (hidden, layer.weight)
    )


def test_zeros_stay_zeros():
    hidden = torch.zeros(3, 8, dtype=torch.float64, requires_grad=True)
    norm()(hidden).sum().backward()
    assert torch.isfinite(hidden.grad).all()


def test_other_dtypes_are_left_to_torch():
    layer = norm(dtype=torch.float32)
    assert torch.isfinite(layer(torch.randn(3, 8).bfloat16()).float()).all()


def test_float16_does_not_overflow():
    layer, hidden = norm(dtype=torch.float16), 300 * torch.randn(3, 8).half()
    exact = F.rms_norm(hidden.double(), (8,), layer.weight.double(), 1e-6)
    torch.testing.assert_close(layer(hidden).double(), exact, rtol=1e-2, atol=1e-3)
