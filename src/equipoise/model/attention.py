"""Causal multi-head attention with rotary positions.

Rotary positions (Su et al. 2021): numbers j and j + d/2 of a head of d numbers are turned, at position s, by the angle
s * base^(-2j/d). So a query and a key meet at an angle that depends only on how far apart they are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

    def forward(self, heads: Tensor) -> Tensor:
        """Turn heads (..., S, d), in float32 whatever their dtype."""
        S = heads.shape[-2]
        return _Turn.apply(heads, self.cos[:S].float(), self.sin[:S].float())

    def _angles(self, device: torch.device | None) -> tuple[Tensor, Tensor]:
        pairs = torch.arange(0, self.head_size, 2, dtype=torch.float32, device=device) / self.head_size
        angles = torch.outer(
            torch.arange(self.sequence_length, dtype=torch.float32, device=device), 1.0 / self.base**pairs
        )
        return angles.cos(), angles.sin()


class _Turn(torch.autograd.Function):
    """A rotation, whose gradient is the rotation back: nothing of the heads needs to be kept."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, -sin), None, None


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    precise = heads.to(torch.promote_types(heads.dtype, torch.float32))
    one, other = precise.chunk(2, dim=-1)
    result = torch.empty_like(precise)
    first, second = result.chunk(2, dim=-1)
    torch.mul(one, cos, out=first).addcmul_(other, sin, value=-1)
    torch.mul(other, cos, out=second).addcmul_(one, sin)
    return result.to(heads.dtype)


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
        heads = self.qkv(hidden).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # 3, B, H, S, d
        turned, values = rotary(heads[:2]), heads[2]
        mixed = F.scaled_dot_product_attention(turned[0], turned[1], values, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))
