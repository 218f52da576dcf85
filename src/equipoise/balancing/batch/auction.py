"""The best assignment with exact loads: the program that every balancer approximates, solved on one
batch.

    maximise  sum_ik gamma_ik x_ik
    with      sum_k x_ik = K,    least_k <= sum_i x_ik <= most_k,    x_ik in {0, 1}

Given a price per expert, each token is content with the K experts of highest score - price. The
right prices make the loads right. They are found as at an auction, in two phases.

1. *Asking prices.* All experts at once ask the price at which as many tokens as they have places
   still prefer them to their other choices, the tokens look again, and so on: an exact
   block-coordinate step on the dual each time, no step size. After some eight rounds, 50 of 100,000
   choices are left to correct. (Tokens that bid against each other, as in Bertsekas' auction and
   the BASE layers, were tried: they need ten times as many rounds, and still leave more.)

2. *Exchange.* What is left is corrected exactly. A token moves from expert a to expert b at a cost
   of score_a - score_b; the cheapest chain of moves that leads from an expert with too many tokens
   to one with too few is a shortest path between E nodes. Along it as many tokens move at once as
   stay content within epsilon, and prices rise by the distances that the search found (the method
   of Jonker and Volgenant). Every chain makes loads better, so it ends, and ends in exact loads.

The answer misses the greatest total score by at most epsilon for every choice made
(epsilon-complementary slackness). Measured, it misses less than 1e-5 of it, and mostly nothing that
float64 can tell: where one token moves at a time, that is exact. Where many tokens are nearly
equal, asking prices leave thousands of choices open; then epsilon starts large and is scaled down,
so that many tokens move at once.

Where least and most differ, one more token is invented that takes the places which are to stay
empty: at most one of each expert, and it scores them all the same.

All of it waits for the device again and again, and nothing of it can be compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

# of asking prices; they halve what is left or, with many equal tokens, do nothing any more
_MOST_ROUNDS = 24
# choices per expert left to correct: where there are more, many tokens are nearly equal
_MANY = 8
# of the scores' range: epsilon on the way down
_SCALING = (1e-2, 1e-3, 1e-4, 1e-5)


class Assignment(NamedTuple):
    """An assignment and the prices that prove how good it is."""

    held: Tensor
    """(T, E) bool: K in each row, the experts' loads in the columns"""
    prices: Tensor
    """(E,) float64: each token's experts are its best by score - price, within epsilon"""


def assign(scores: Tensor, top_k: int, least: Tensor, most: Tensor, tolerance: float) -> Assignment:
    """The best assignment with loads between `least` and `most`, at most 1 apart, within epsilon
    for each choice.

    Args:
        scores: (T, E), finite.
        top_k: K.
        least, most: (E,) int64 bounds of loads that can be met: sum(least) <= T K <= sum(most),
            most <= T.
        tolerance: epsilon as a fraction of the scores' range.
    """
    num_tokens, num_experts = scores.shape
    if not num_tokens or top_k == num_experts:
        return Assignment(
            torch.ones_like(scores, dtype=torch.bool),
            scores.new_zeros(num_experts, dtype=torch.float64),
        )
    by_expert = scores.double().t().contiguous()
    prices = asking_prices(by_expert, top_k, least, most)
    market = _Market(*_with_idle_token(by_expert, top_k, least, most), most, prices)
    crowded = market.surplus() > _MANY * num_experts
    for epsilon in _epsilon_schedule(crowded, tolerance, float(scores.max() - scores.min())):
        market.choose_again(epsilon)
        market.exchange(epsilon)
    return Assignment(market.holdings()[:, :num_tokens].t(), market.prices)


def asking_prices(scores: Tensor, top_k: int, least: Tensor, most: Tensor) -> Tensor:
    """(E, T) scores -> (E,) prices under which the tokens' own choices are nearly balanced."""
    num_experts, num_tokens = scores.shape
    by_token = scores.t().contiguous()
    prices = scores.new_zeros(num_experts)
    # any price between the last token served and the first one sent away would do: ask the middle
    ranks = torch.stack((most, least + 1), dim=1).clamp(1, num_tokens) - 1
    for _ in range(_MOST_ROUNDS):
        best, order = (by_token - prices).topk(top_k + 1, dim=1)
        loads = torch.bincount(order[:, :top_k].flatten(), minlength=num_experts)
        if (loads - most).clamp_min(0).sum() <= num_experts:
            break
        leads = scores - best[:, top_k - 1 :].mean(1)
        prices = leads.topk(int(ranks.max()) + 1, dim=1).values.gather(1, ranks).mean(1)
    return prices


def _with_idle_token(
    scores: Tensor, top_k: int, least: Tensor, most: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores (E, T or T + 1) and how many experts each token takes: all places are taken."""
    num_experts, num_tokens = scores.shape
    wants = torch.full((num_tokens,), top_k, device=scores.device)
    idle = most.sum() - num_tokens * top_k
    if idle == 0:
        return scores, wants
    idle_scores = torch.zeros(num_experts, dtype=scores.dtype, device=scores.device).masked_fill(
        most == least, -torch.inf
    )
    return torch.cat((scores, idle_scores.unsqueeze(1)), dim=1), torch.cat((wants, idle.reshape(1)))


def _epsilon_schedule(crowded: bool, tolerance: float, score_range: float) -> Iterator[float]:
    """Straight to the last epsilon where little is left to move; else down to it in steps."""
    ways = [scale for scale in _SCALING if scale > tolerance] if crowded else []
    yield from (scale * score_range for scale in (*ways, tolerance))


class _Market:
    """Who holds what, the prices, and what it costs to move a token from one expert to another.

    `held` (E, T) has the scores of held places and inf elsewhere, `free` those of the others and
    -inf where there are none: so a minimum over held or a maximum over free places needs no mask.
    `costs` (E, E) is the least held[a] - free[b] of a token.
    """

    def __init__(self, scores: Tensor, wants: Tensor, places: Tensor, prices: Tensor) -> None:
        self.scores, self.wants, self.places, self.prices = scores, wants, places, prices
        self.held = torch.full_like(scores, torch.inf)
        self.free = scores.clone()
        self.costs = scores.new_empty(len(scores), len(scores))
        # 8 MB at 16,384 x 64: to allocate it each time costs more than the arithmetic
        self._workspace = torch.empty_like(scores)
        self._let_choose(torch.arange(scores.shape[1], device=scores.device))

    def holdings(self) -> Tensor:
        return self.held < torch.inf

    def excess(self) -> Tensor:
        """(E,): how many tokens too many each expert has."""
        return self.holdings().sum(1) - self.places

    def surplus(self) -> int:
        return int(self.excess().clamp_min(0).sum())

    def choose_again(self, epsilon: float) -> None:
        """Let the tokens that are not content within epsilon choose their best at these prices."""
        content = self._are_content(self.held, self.free, epsilon)
        self._let_choose((~content).nonzero().squeeze(1))
        for expert in range(len(self.places)):
            self._update_costs_from(expert)

    def exchange(self, epsilon: float) -> None:
        """Move tokens along cheapest chains until every place is taken once."""
        while True:
            excess = self.excess()
            if not (excess > 0).any():
                return
            chain = self._cheapest_chain(excess)
            for (giver, taker), movers in zip(
                pairwise(chain), self._choose_movers(chain, excess, epsilon), strict=True
            ):
                self._move(movers, giver, taker)
            for expert in chain:
                self._update_costs_from(expert)
                self._update_costs_to(expert)

    def _are_content(self, held: Tensor, free: Tensor, epsilon: float) -> Tensor:
        """(m,) bool: whether tokens with these held and free places (E, m) have no better choice.

        A choice is better if it is so by more than epsilon.
        """
        prices = self.prices.unsqueeze(1)
        return (held - prices).amin(0) >= (free - prices).amax(0) - epsilon

    def _let_choose(self, tokens: Tensor) -> None:
        scores, wants = self.scores[:, tokens], self.wants[tokens]
        many = int(wants.max()) if len(wants) else 0
        order = (scores - self.prices.unsqueeze(1)).topk(many, dim=0).indices
        within = torch.arange(many, device=order.device).unsqueeze(1) < wants
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(0, order, within)
        self.held[:, tokens] = scores.masked_fill(~chosen, torch.inf)
        self.free[:, tokens] = scores.masked_fill(chosen, -torch.inf)

    def _cheapest_chain(self, excess: Tensor) -> list[int]:
        """Experts from one with too many tokens to one with too few.

        Prices rise by what the chain costs. Costs at these prices are not negative, but for
        epsilon: contented tokens lose by moving. So the search ends.
        """
        lengths = (self.costs - self.prices.unsqueeze(1) + self.prices).clamp_min(0)
        distances = torch.where(excess > 0, 0.0, torch.full_like(self.prices, torch.inf))
        before = torch.full_like(excess, -1)
        while True:
            shorter, via = (distances.unsqueeze(1) + lengths).min(0)
            better = shorter < distances
            if not better.any():
                break
            distances, before = (
                torch.where(better, shorter, distances),
                torch.where(better, via, before),
            )
        to_open = torch.where(excess < 0, distances, torch.inf)
        self.prices = self.prices + (to_open.min() - distances).clamp_min(0)
        return _walk_back(int(to_open.argmin()), before.tolist())

    def _choose_movers(self, chain: list[int], excess: Tensor, epsilon: float) -> list[Tensor]:
        """For each link of the chain, equally many tokens that move along it: at least one."""
        limit = int(torch.minimum(excess[chain[0]], -excess[chain[-1]]))
        movers = [
            self._willing_movers(giver, taker, limit, epsilon) for giver, taker in pairwise(chain)
        ]
        # each token was asked about one link alone. The cheapest of a link may move in others too:
        # the search allows for it
        busy = torch.zeros_like(self.wants, dtype=torch.bool)
        busy[torch.stack([tokens[0] for tokens in movers])] = True
        for link, tokens in enumerate(movers):
            others = tokens[1:][~busy[tokens[1:]]]
            busy[others] = True
            movers[link] = torch.cat((tokens[:1], others))
        limit = min(map(len, movers))
        return [tokens[:limit] for tokens in movers]

    def _willing_movers(self, giver: int, taker: int, limit: int, epsilon: float) -> Tensor:
        """The cheapest tokens to move from giver to taker, up to `limit`.

        They are the first one, and those that stay content.
        """
        costs, tokens = (self.held[giver] - self.free[taker]).topk(limit, largest=False)
        tokens = tokens[costs < torch.inf]
        held, free = self.held[:, tokens], self.free[:, tokens]
        held[giver], free[giver] = torch.inf, self.scores[giver, tokens]
        held[taker], free[taker] = self.scores[taker, tokens], -torch.inf
        content = self._are_content(held, free, epsilon)
        content[0] = True
        return tokens[content]

    def _move(self, tokens: Tensor, giver: int, taker: int) -> None:
        self.held[giver, tokens], self.free[giver, tokens] = torch.inf, self.scores[giver, tokens]
        self.held[taker, tokens], self.free[taker, tokens] = self.scores[taker, tokens], -torch.inf

    def _update_costs_from(self, expert: int) -> None:
        self.costs[expert] = torch.sub(self.held[expert], self.free, out=self._workspace).amin(1)

    def _update_costs_to(self, expert: int) -> None:
        self.costs[:, expert] = torch.sub(self.held, self.free[expert], out=self._workspace).amin(1)


def _walk_back(last: int, before: list[int]) -> list[int]:
    """The chain of experts that ends at `last`, by each one's predecessor; -1 has none."""
    chain = [last]
    while before[chain[-1]] >= 0:
        chain.append(before[chain[-1]])
    return chain[::-1]
