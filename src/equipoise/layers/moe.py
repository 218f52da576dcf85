"""MoE: router, routed experts and shared experts, as one layer.

The forward is pure: it returns its tally and counts nothing on the side. A training loop adds
tallies up and updates the balancer after the optimizer's step:

    output, routing, tally, penalty, _ = layer(hidden)
    loss = loss + penalty
    ...
    optimizer.step(); layer.router.balancer.update(tally)
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.balancing import resolve_balancer
from equipoise.balancing.resolve import BalancerSource
from equipoise.layers.experts import Experts
from equipoise.layers.router import Router, Sample
from equipoise.routing import Groups, Routing, Tally


class MoEOutput(NamedTuple):
    """What a layer returns. Reentrant checkpointing makes it a plain tuple in this order."""

    output: Tensor
    routing: Routing
    tally: Tally
    penalty: Tensor
    sample: Sample | None


class SwiGLU(nn.Module):
    """A dense feed-forward block, down(silu(gate x) * up x). All shared experts are one of them."""

    def __init__(self, hidden_size: int, width: int, init_std: float = 0.006) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden_size, 2 * width, bias=False)
        self.down = nn.Linear(width, hidden_size, bias=False)
        for linear in (self.gate_up, self.down):
            nn.init.normal_(linear.weight, std=init_std)

    def forward(self, hidden: Tensor) -> Tensor:
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class MoE(nn.Module):
    """A sparse Mixture-of-Experts layer whose experts stay evenly loaded.

    Args:
        hidden_size: D.
        expert_size: the inner width of an expert.
        num_experts: E, the routed ones.
        top_k: K.
        balancer: a name (`equipoise.balancers()`), a Balancer of this size, or a function
            (num_experts, top_k) -> Balancer.
        shared_experts: experts every token takes, of the same width.
        implementation: of the routed experts; see Experts.
        score, groups, renormalize, scale, look_ahead, anticipate, init_std: see Router.

    Example:
        >>> layer = equipoise.MoE(16, 32, num_experts=8, top_k=2, balancer="curvature")
        >>> output, routing, tally, penalty, sample = layer(torch.randn(4, 10, 16))
        >>> output.shape, int(tally.loads.sum())
        (torch.Size([4, 10, 16]), 80)
    """

    def __init__(
        self,
        hidden_size: int,
        expert_size: int,
        num_experts: int,
        top_k: int,
        *,
        balancer: BalancerSource = "deepseek",
        shared_experts: int = 0,
        implementation: str = "auto",
        score: str = "softmax",
        groups: Groups | tuple[int, int] | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
        look_ahead: int = 0,
        anticipate: int = 0,
        init_std: float = 0.006,
    ) -> None:
        super().__init__()
        self.router = Router(
            hidden_size,
            resolve_balancer(balancer, num_experts, top_k),
            score=score,
            groups=groups,
            renormalize=renormalize,
            scale=scale,
            look_ahead=look_ahead,
            anticipate=anticipate,
            init_std=init_std,
        )
        self.experts = Experts(
            num_experts, hidden_size, expert_size, implementation=implementation, init_std=init_std
        )
        self.shared = (
            SwiGLU(hidden_size, shared_experts * expert_size, init_std) if shared_experts else None
        )

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, sequences: Tensor | None = None
    ) -> MoEOutput:
        """Transform hidden (..., D). mask (...) is True where a token is padding: it is
        transformed, but not counted.
        """
        routing, tally, penalty, sample = self.router(hidden, mask, sequences)
        flat = hidden.flatten(0, -2)
        shared = None if self.shared is None else self.shared(flat)
        output = self.experts(flat, routing.experts, routing.gates.to(flat.dtype), onto=shared)
        return MoEOutput(output.view_as(hidden), routing, tally, penalty, sample)
