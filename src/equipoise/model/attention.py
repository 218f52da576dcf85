"""Causal multi-head attention with rotary positions.

Rotary positions (Su et al. 2021): numbers j and j + d/2 of a head of d numbers are turned, at position s, by the angle
s * base^(-2j/d). So a query and a key meet at an angle that depends only on how far apart they are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from equipoise.model.config import ModelConfig


class Rotary(nn.Module):
    """cos and sin of all angles (S, d/2), computed once. Not saved: they follow from the config."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, sequence_length: int, base: float) -> None:
        super().__init__()
        self.head_size, self.sequence_length, self.base = head_size, sequence_length, base
        cos, sin = self._angles(None)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def reset(self) -> None:
        """Compute them again, on the device they are on: a model built on the meta device has none."""
        self.cos, self.sin = self._angles(self.cos.device)

    def forward(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, S, H, d) from all three together (B, S, 3, H, d); the first two turned."""
        S = qkv.shape[1]
        return _Heads.apply(qkv, self.cos[:S].float().unsqueeze(1), self.sin[:S].float().unsqueeze(1))

    def _angles(self, device: torch.device | None) -> tuple[Tensor, Tensor]:
        pairs = torch.arange(0, self.head_size, 2, dtype=torch.float32, device=device) / self.head_size
        angles = torch.outer(
            torch.arange(self.sequence_length, dtype=torch.float32, device=device), 1.0 / self.base**pairs
        )
        return angles.cos(), angles.sin()


class _Heads(torch.autograd.Function):
    """The gradient of a rotation is the rotation back. So nothing needs to be kept, and the three gradients go straight into
    one tensor: left to autograd, cutting one tensor in three costs three tensors of zeros and their sum."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        query, key, value = qkv.unbind(2)
        turned = torch.empty_like(query), torch.empty_like(key)
        for heads, result in zip((query, key), turned):
            _turn(heads, cos, sin, result)
        return *turned, value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        B, S, H, d = grads[0].shape
        result = grads[0].new_empty(B, S, 3, H, d)
        for n in range(2):
            _turn(grads[n], cos, -sin, result[:, :, n])
        result[:, :, 2] = grads[2]
        return result, None, None


def _turn(heads: Tensor, cos: Tensor, sin: Tensor, result: Tensor) -> None:
    """Write heads, turned, into result; in float32 at least, whatever their dtype."""
    precise = torch.promote_types(heads.dtype, torch.float32)
    if heads.dtype != precise:
        wide = torch.empty_like(heads, dtype=precise)
        _turn(heads.to(precise), cos, sin, wide)
        result.copy_(wide)
        return
    (one, other), (first, second) = heads.chunk(2, dim=-1), result.chunk(2, dim=-1)
    torch.mul(one, cos, out=first).addcmul_(other, sin, value=-1)
    torch.mul(other, cos, out=second).addcmul_(one, sin)


def reference_heads(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The slow twin, as one would write it down; cos and sin are (S, d/2)."""
    query, key, value = qkv.unbind(2)

    def turn(heads: Tensor) -> Tensor:
        one, other = heads.chunk(2, dim=-1)
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.cat((one * c - other * s, other * c + one * s), dim=-1)

    return turn(query), turn(key), value


class Attention(nn.Module):
    """Causal attention through scaled_dot_product_attention: the fastest kernel the device has."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        for linear in (self.qkv, self.out):
            nn.init.normal_(linear.weight, std=config.init_std)

    def forward(self, hidden: Tensor, rotary: Rotary) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        heads = rotary(self.qkv(hidden).unflatten(-1, (3, self.num_heads, -1)))
        query, key, value = (each.transpose(1, 2) for each in heads)  # B, H, S, d
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))
