"""The sliced loss against its slow twin."""

import pytest
import torch

from equipoise.model import loss
from equipoise.model.loss import linear_cross_entropy, reference_cross_entropy


def problem(T=37, D=8, V=50, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(T, D, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (T,), generator=generator)


@pytest.mark.parametrize("logits", [1, 50 * 10, 50 * 37, 10**6])
def test_slices_add_up(monkeypatch, logits):
    monkeypatch.setattr(loss, "SLICE_LOGITS", logits)
    monkeypatch.setattr(loss, "MIN_SLICE_ROWS", 1)
    hidden, weight, targets = problem()
    value = linear_cross_entropy(hidden, weight, targets)
    expected = reference_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(value, expected)
    for one, other in zip(
        torch.autograd.grad(3 * value, (hidden, weight)),
        torch.autograd.grad(3 * expected, (hidden, weight)),
    ):
        torch.testing.assert_close(one, other)


def test_without_gradients_it_is_the_same():
    hidden, weight, targets = problem()
    with torch.no_grad():
        value = linear_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(value, linear_cross_entropy(hidden, weight, targets).detach())


def test_leading_dimensions_are_free():
    hidden, weight, targets = problem(T=36)
    value = linear_cross_entropy(hidden.view(4, 9, -1), weight, targets.view(4, 9))
    assert torch.equal(value, linear_cross_entropy(hidden, weight, targets))


def test_autocast_sums_in_float32():
    hidden, weight, targets = problem()
    with torch.autocast("cpu", torch.bfloat16):
        value = linear_cross_entropy(hidden, weight, targets)
    value.backward()
    assert value.dtype == torch.float32
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(
        value, reference_cross_entropy(hidden, weight, targets), rtol=2e-2, atol=2e-2
    )


def test_lengths_must_agree():
    hidden, weight, targets = problem()
    with pytest.raises(ValueError, match="37 hidden states for 36 targets"):
        linear_cross_entropy(hidden, weight, targets[1:])
