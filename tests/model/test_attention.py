"""Rotary positions: a rotation, and its gradient the rotation back."""

import pytest
import torch

from equipoise.model.attention import Rotary, turn_pairs

B, S, H, D = 2, 10, 3, 8


def rotary():
    return Rotary(D, 16, 1e4)


def random_qkv(dtype=torch.float32, **options):
    return (
        torch.randn(B, S, 3, H, D, generator=torch.Generator().manual_seed(0))
        .to(dtype)
        .requires_grad_(**options)
    )


def test_lengths_do_not_change():
    qkv = random_qkv()
    for turned, plain in zip(rotary()(qkv), qkv.unbind(2), strict=True):
        torch.testing.assert_close(turned.norm(dim=-1), plain.norm(dim=-1))


def test_values_are_not_turned():
    qkv = random_qkv()
    assert torch.equal(rotary()(qkv)[2], qkv[:, :, 2])


def test_only_distance_matters():
    """The product of a turned query and a turned key is the same wherever they stand, if they are
    as far apart.
    """
    same = torch.randn(1, 1, 3, 1, D).expand(1, S, 3, 1, D)
    query, key, _ = (each[0, :, 0] for each in rotary()(same))
    products = torch.stack([query[s + 3] @ key[s] for s in range(S - 3)])
    torch.testing.assert_close(products, products[:1].expand(S - 3))
    assert not torch.isclose(query[5] @ key[5], products[0])


def test_complex_and_plain_turns_agree():
    qkv, upstream, angles = random_qkv(), torch.randn(3, B, S, H, D), rotary()
    results = []
    for heads in (angles(qkv), turn_pairs(qkv, angles.cos[:S], angles.sin[:S])):
        (grad,) = torch.autograd.grad(
            [(up * each).sum() for up, each in zip(upstream, heads, strict=True)], qkv
        )
        results.append((*heads, grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_stays(dtype):
    qkv = random_qkv(dtype)
    query, key, value = rotary()(qkv)
    (query + key + value).sum().backward()
    assert query.dtype == key.dtype == value.dtype == qkv.grad.dtype == dtype


def test_angles_can_be_computed_again():
    with torch.device("meta"):
        angles = rotary()
    angles = angles.to_empty(device="cpu")
    angles.reset()
    assert torch.equal(angles.cos, rotary().cos)
