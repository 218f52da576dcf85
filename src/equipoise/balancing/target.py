"""Target: the load each expert should have, and how far it is from it.

The paper's L = K T / E is the even share. With weights w_k an expert should have L_k = K T w_k /
sum(w).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.balancing.mathematics.gap import load_gap, token_count, wanted_loads
from equipoise.balancing.precise import Precise

Weights = Sequence[float] | Tensor | None
"""weights of the experts' target loads; None: all equal"""


class Target(Precise):
    """Loads in proportion to weights, equal by default."""

    weights: Tensor

    def __init__(
        self, num_experts: int, top_k: int, weights: Weights = None, *, experts_per_price: int = 1
    ) -> None:
        """`experts_per_price` above 1: each of the "experts" is so many that share a price, and a
        token may take several of them (per_device.py).
        """
        super().__init__()
        # floats go straight to float64: by way of float32, torch's default, 0.1 would be 1.5e-9 too
        # large. On the CPU, since they are looked at: torch.device("meta") has no values
        chosen = torch.as_tensor(
            [1.0] * num_experts if weights is None else weights, dtype=torch.float64, device="cpu"
        ).detach()
        _check_weights(chosen, num_experts, top_k / experts_per_price)
        self.top_k = top_k
        self.experts_per_price = experts_per_price
        self.whole = float(chosen.sum())
        self._shares = tuple((chosen / self.whole).tolist())
        # not saved: a target is what the user asks for, not what was learnt
        self.keep_buffer("weights", chosen, (num_experts,), dtype=torch.float64, persistent=False)

    @property
    def shares(self) -> tuple[float, ...]:
        """Each expert's share of all choices."""
        return self._shares

    def loads(self, total: Tensor) -> Tensor:
        """(E,) float64: the loads that `total` choices should give."""
        return wanted_loads(total, self.weights, self.whole)

    def gap(self, loads: Tensor) -> Tensor:
        """L - A, (E,) float64: positive where an expert has too few, 0 where it is right."""
        return load_gap(loads, self.weights, self.whole)

    def tokens(self, loads: Tensor) -> Tensor:
        """T, the tokens behind these loads; at least 1, so that it can divide. Once for each
        expert that shares a price.
        """
        return token_count(loads, self.top_k) * self.experts_per_price

    def choices(self, tokens: Tensor) -> Tensor:
        """K T, the choices of so many tokens."""
        # multiplied first: of whole numbers, what should be whole then is
        return tokens * self.top_k / self.experts_per_price


def _check_weights(weights: Tensor, num_experts: int, top_k: float) -> None:
    """Refuse weights that no loads can follow: an expert has each token at most once."""
    if weights.shape != (num_experts,):
        raise ValueError(
            f"target has {weights.numel()} weights, but there are {num_experts} experts"
        )
    if not torch.isfinite(weights).all() or (weights <= 0).any():
        raise ValueError(f"target weights must be positive and finite, not {weights.tolist()}")
    share = weights * top_k / weights.sum()
    if (share > 1 + 1e-12).any():
        worst = int(share.argmax())
        raise ValueError(
            f"target asks expert {worst} for {float(share[worst]):.3g} times the tokens there are: "
            f"with top_k = {top_k:g} a weight can be at most 1/{top_k:g} of their sum"
        )
