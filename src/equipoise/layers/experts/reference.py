"""The slow twin that the fast implementations are held to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def reference_experts(
    hidden: Tensor, experts: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """The slow twin: every expert computes every token, and the gates of those not chosen are 0."""
    T, E = len(hidden), len(down)
    gates_TE = gates.new_zeros(T, E + 1).scatter_add(1, experts, gates)[:, :E]
    gate, up = torch.einsum("td,efd->tef", hidden, gate_up).chunk(2, dim=-1)
    return torch.einsum("te,tef,edf->td", gates_TE.to(hidden.dtype), F.silu(gate) * up, down)
