"""TruncatedAuction: the auction of the BASE layers, which stops early. The exact one is in
auction.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.batch.plan import PlanSolver
from equipoise.balancing.target import Weights

# of the scores' range, and at least: what a bid exceeds the least that would do by
_INCREMENT, _LEAST_INCREMENT = 1 / 50, 1e-4


class TruncatedAuction(PlanSolver):
    """The auction of Bertsekas (1992) as the BASE layers run it (Lewis et al. 2021), for any K.

    Experts bid for tokens. Each bids for the q tokens worth most to it, score - price, by as much
    more as they are worth than its (q + 1)-th, and an increment. A token goes to its K highest
    bidders, and its price rises by the least bid of these: by nothing while there are fewer. Who
    has a token keeps it unless K others bid more. It ends when all tokens have K bidders: then
    loads are exact. After `rounds` rounds experts keep what they have only if it is worth more to
    them without a price, which ends soon; and after as many again it stops, and tokens without K
    bidders take their highest scores for the rest.

    It waits for the device once in a round. The increment is a fiftieth of the scores' range, as
    in the BASE layers: the total score may lie that much below the greatest for every choice.

    Not causal: while training, a token's experts depend on later tokens of the batch. In evaluation
    each token takes its K highest scores.

    Args:
        num_experts: E.
        top_k: K.
        rounds: how many before winners may lose what they have; 100 in the BASE layers.
        target: weights of the experts' target loads; equal by default.
    """

    def __init__(
        self, num_experts: int, top_k: int, *, rounds: int = 100, target: Weights = None
    ) -> None:
        super().__init__(num_experts, top_k, target=target)
        if rounds < 1:
            raise ValueError(f"auction needs at least 1 round, not {rounds}")
        self.rounds = rounds

    def plan(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """The scores, those of places won above all others, (T, E)."""
        if not len(scores) or self.top_k == self.num_experts:
            return scores
        real = scores if mask is None else scores[~mask]
        won = torch.zeros_like(scores, dtype=torch.bool)
        won[slice(None) if mask is None else ~mask] = self._hold_auction(real.t().double()).t()
        above = scores.max() - scores.min() + 1
        return scores + above * won

    def _hold_auction(self, scores: Tensor) -> Tensor:
        """(E, T) scores -> (E, T) bool: who won which tokens."""
        won = torch.zeros_like(scores, dtype=torch.bool)
        if not scores.numel():
            return won
        _, places = self.places(scores.shape[1], scores.device)
        most, least = scores.max(), scores.min()
        increment = ((most - least) * _INCREMENT).clamp_min(_LEAST_INCREMENT)
        values, prices = scores, torch.zeros_like(scores[0])
        for number in range(2 * self.rounds):
            bids = _bids(values, places, increment)
            if number < self.rounds:
                bids = torch.where(won, increment, bids)
            # winners all bid the increment: sorted, not top-K, so that ties go to the lowest index
            best, bidders = (
                each[: self.top_k] for each in bids.sort(dim=0, descending=True, stable=True)
            )
            won = torch.zeros_like(won).scatter_(0, bidders, best > 0)
            if (best[-1] > 0).all():
                break
            prices = prices + best[-1]
            kept = most if number < self.rounds else scores
            values = torch.where(won, kept, scores - prices)
        return won

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rounds={self.rounds}"


def _bids(values: Tensor, places: Tensor, increment: Tensor) -> Tensor:
    """(E, T): for the `places` tokens worth most to an expert, by how much they are worth more than
    the next one, and the increment; 0 for the others.
    """
    ordered, tokens = values.sort(dim=1, descending=True, stable=True)
    last = places.clamp_max(values.shape[1] - 1).unsqueeze(1)
    offers = ordered - ordered.gather(1, last) + increment
    wanted = torch.arange(values.shape[1], device=values.device) < places.unsqueeze(1)
    return torch.zeros_like(values).scatter_(1, tokens, offers * wanted)
