"""Rotary positions: a rotation, and its gradient the rotation back."""

import pytest
import torch

from equipoise.model.attention import Rotary


def test_lengths_do_not_change():
    heads = torch.randn(2, 3, 10, 8)
    torch.testing.assert_close(Rotary(8, 16, 1e4)(heads).norm(dim=-1), heads.norm(dim=-1))


def test_only_distance_matters():
    """The product of a turned query and a turned key is the same wherever they stand, if they are as far apart."""
    query, key, rotary = torch.randn(8), torch.randn(8), Rotary(8, 16, 1e4)
    queries, keys = rotary(query.expand(16, 8)), rotary(key.expand(16, 8))
    products = torch.stack([queries[s + 3] @ keys[s] for s in range(13)])
    torch.testing.assert_close(products, products[:1].expand(13))
    assert not torch.isclose(queries[5] @ keys[5], products[0])


def test_the_gradient_is_the_slope():
    rotary = Rotary(4, 6, 1e4)
    heads = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rotary, heads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_stays(dtype):
    assert Rotary(4, 6, 1e4)(torch.randn(2, 6, 4, dtype=dtype)).dtype == dtype


def test_angles_can_be_computed_again():
    with torch.device("meta"):
        rotary = Rotary(8, 16, 1e4)
    rotary = rotary.to_empty(device="cpu")
    rotary.reset()
    assert torch.equal(rotary.cos, Rotary(8, 16, 1e4).cos)
