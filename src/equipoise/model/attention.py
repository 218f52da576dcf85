"""Causal multi-head attention with rotary positions.

Rotary positions (Su et al. 2021): numbers 2j and 2j + 1 of a head of d numbers are turned, at
position s, by the angle s * base^(-2j/d). So a query and a key meet at an angle that depends only
on how far apart they are. (transformers pairs j with j + d/2 instead: the same model with the rows
of each head's weights in another order.)
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
        """Compute them again on their device: a model built on the meta device has none."""
        self.cos, self.sin = self._angles(self.cos.device)

    def forward(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, S, H, d), from all three together (B, S, 3, H, d).
        Queries and keys are turned.
        """
        S = qkv.shape[1]
        cos, sin = self.cos[:S].float(), self.sin[:S].float()
        if qkv.device.type == "cpu" and not torch.compiler.is_compiling():
            return _TurnComplex.apply(qkv, torch.complex(cos, sin))
        return turn_pairs(qkv, cos, sin)

    def _angles(self, device: torch.device | None) -> tuple[Tensor, Tensor]:
        pairs = (
            torch.arange(0, self.head_size, 2, dtype=torch.float32, device=device) / self.head_size
        )
        angles = torch.outer(
            torch.arange(self.sequence_length, dtype=torch.float32, device=device),
            1.0 / self.base**pairs,
        )
        return angles.cos(), angles.sin()


def turn_pairs(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The formula as it is written; cos and sin are (S, d/2)."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    query, key, value = qkv.unbind(2)

    def turned(heads: Tensor) -> Tensor:
        one, other = _at_least_float32(heads).unflatten(-1, (-1, 2)).unbind(-1)
        return (
            torch.stack((one * cos - other * sin, other * cos + one * sin), dim=-1)
            .flatten(-2)
            .to(heads.dtype)
        )

    return turned(query), turned(key), value


class _TurnComplex(torch.autograd.Function):
    """The fastest way on the CPU, which torch.compile cannot trace: a pair is a complex number, and
    turning it is a product with e^(i angle). Its gradient is turned back, so nothing needs to be
    kept, and the three gradients are written where the layer below wants them. Values are
    multiplied by 1: one pass over everything is faster than a pass over two thirds and a copy.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, turns: Tensor) -> tuple[Tensor, ...]:
        # (S, H, d/2)
        ctx.turns = turns = turns.unsqueeze(1).expand(-1, qkv.shape[3], -1).contiguous()
        # (S, 3, H, d/2), as qkv lies in memory
        factors = torch.stack((turns, turns, torch.ones_like(turns)), dim=1)
        return torch.view_as_real(_pairs(qkv) * factors).flatten(-2).to(qkv.dtype).unbind(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        B, S, H, d = grads[0].shape
        result = _at_least_float32(grads[0].new_empty(B, S, 3, H, d))
        back = ctx.turns.conj().resolve_conj()
        for n in range(2):
            torch.mul(_pairs(grads[n]), back, out=_pairs(result)[:, :, n])
        result[:, :, 2] = grads[2]
        return result.to(grads[0].dtype), None


def _pairs(heads: Tensor) -> Tensor:
    """(..., d) numbers as (..., d/2) complex ones."""
    heads = _at_least_float32(heads)
    # the gradient of a sum, for example, is one number seen many times
    if heads.stride(-1) != 1:
        heads = heads.contiguous()
    return torch.view_as_complex(heads.unflatten(-1, (-1, 2)))


def _at_least_float32(tensor: Tensor) -> Tensor:
    """Late positions turn by large angles, which need the digits."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


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
