"""Router: from hidden states to a routing, with its balancer, and with a look ahead if wanted.

    logits = hidden @ weight^T          in float32, whatever the model's dtype
    scores = softmax(logits)            or sigmoid, sqrt_softplus
    routing = balancer.route(scores)

**Looking ahead.** Every rule sets the shift for the next batch from the scores of the last one; but
between the two the optimizer moves the router's weights, and early in training that moves the
experts' common scores further than tokens differ. With `look_ahead=N`, a forward in training also
returns a sample of at most N of the router's inputs. After the optimizer's step

    optimizer.step()
    balancer.update(router.fresh_tally(sample))         instead of balancer.update(tally)

scores the sample with the weights as they now are: one small matrix product and no second forward.
Samples of micro-batches add up like tallies, and fresh tallies are reduced over ranks like others.
It costs N * hidden_size numbers of memory per layer and micro-batch. What it does not see is that
the layers below have moved too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.balancing import Balancer
from equipoise.layers.choosing_layer import ChoosingLayer
from equipoise.layers.experts.uncompiled import leave_uncompiled
from equipoise.layers.weight_history import WeightHistory, check_look_back
from equipoise.routing import Groups, Routing, Tally, score_function


@dataclass(frozen=True, eq=False)
class Sample:
    """Some of a router's inputs, kept to be scored again. `sample_a + sample_b` holds both."""

    hidden: Tensor
    """(N, D), detached"""
    padding: Tensor
    """(N,) bool"""

    def __add__(self, other: Sample | Literal[0]) -> Sample:
        if isinstance(other, int) and other == 0:
            return self  # the start of sum()
        if not isinstance(other, Sample):
            return NotImplemented
        return Sample(
            torch.cat((self.hidden, other.hidden)), torch.cat((self.padding, other.padding))
        )

    __radd__ = __add__


class Routed(NamedTuple):
    """What a router returns."""

    routing: Routing
    tally: Tally
    penalty: Tensor
    sample: Sample | None
    """inputs to score again after the optimizer's step; None without look-ahead and in evaluation
    """


def gate_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden (..., D) @ weight (E, D)^T in float32. Autocast would choose experts in bfloat16."""
    with torch.autocast(hidden.device.type, enabled=False):
        return F.linear(hidden.float(), weight.float())


class Router(ChoosingLayer):
    """A linear gate, a score function and a balancer.

    Args:
        hidden_size: D.
        balancer: holds the number of experts and top_k too.
        score: "softmax", "sigmoid" or "sqrt_softplus".
        groups: (number, keep) for group-limited routing.
        renormalize: divide a token's gates by their sum.
        scale: multiply the gates.
        look_ahead: how many inputs of a forward to keep for `fresh_tally`; 0 keeps none.
        anticipate: in training, choose by the weights of so many updates ago, with gates of
            today's (weight_history.py); it begins anew when a training is resumed.
        init_std: of the gate's weights.

    Example:
        >>> balancer = equipoise.balancer("deepseek", 8, top_k=2)
        >>> router = equipoise.Router(16, balancer, score="sigmoid")
        >>> router(torch.randn(32, 16)).routing.experts.shape
        torch.Size([32, 2])
    """

    def __init__(
        self,
        hidden_size: int,
        balancer: Balancer,
        *,
        score: str = "softmax",
        groups: Groups | tuple[int, int] | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
        look_ahead: int = 0,
        anticipate: int = 0,
        init_std: float = 0.006,
    ) -> None:
        super().__init__()
        if look_ahead < 0:
            raise ValueError(f"look_ahead is a number of tokens, not {look_ahead}")
        if look_ahead and balancer.uses_sequences:
            raise ValueError(
                "look_ahead scores some tokens again, and this balancer must see whole sequences: "
                "leave one of them out"
            )
        # a wrong name is an error here, not in the first forward
        score_function(score)
        self.balancer = balancer
        self.score = score
        self.groups = groups
        self.renormalize = renormalize
        self.scale = scale
        self.look_ahead = look_ahead
        self.weight = nn.Parameter(torch.empty(balancer.num_experts, hidden_size))
        nn.init.normal_(self.weight, std=init_std)
        self.anticipate = check_look_back(anticipate)
        self._history = WeightHistory(anticipate)
        self._seen_updates = -1

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, sequences: Tensor | None = None
    ) -> Routed:
        """Route hidden (..., D). mask (...) is True where a token is padding; sequences (...) names
        each token's sequence.
        """
        logits = gate_logits(hidden, self.weight)
        scores = score_function(self.score)(logits)
        choice = self.choose(scores, mask, self._older_scores(hidden), sequences)
        tally = self.count_choice(choice, sequences)
        penalty = self.balancer.penalty(scores, choice.taken, logits, sequences)
        sample = None
        if self.training and self.look_ahead:
            sample = self._take_sample(hidden, mask, choice.counted is not None)
        return Routed(choice.taken, tally, penalty, sample)

    @torch.no_grad()
    def fresh_tally(self, sample: Sample) -> Tally:
        """The tally of a sample's tokens under the weights as they are now.

        Under FSDP2 every rank must call it.
        """
        weight = self.weight
        if hasattr(weight, "full_tensor"):  # FSDP2 holds a shard of it outside of forward
            weight = weight.full_tensor()
        scores = score_function(self.score)(gate_logits(sample.hidden, weight))
        return self.balancer.tally(scores, self.route_live(scores, sample.padding))

    @torch.no_grad()
    def _older_scores(self, hidden: Tensor) -> Tensor | None:
        """(..., E) by the weights of `anticipate` updates ago; None where today's are to choose."""
        if not self.anticipate or not self.training:
            return None
        self._keep_weight()
        older = self._history.oldest[0].to(hidden.device)
        return score_function(self.score)(gate_logits(hidden, older))

    # a compiled graph would be made anew for every number of updates
    @leave_uncompiled
    def _keep_weight(self) -> None:
        """Keep the weight once after every update."""
        if self._seen_updates != self.balancer.updates_made:
            self._seen_updates = self.balancer.updates_made
            self._history.add([self.weight])

    def _take_sample(self, hidden: Tensor, mask: Tensor | None, is_counted: bool) -> Sample:
        """Evenly over the batch, at most look_ahead; none of a forward that is not counted."""
        flat = hidden.detach().flatten(0, -2)
        every = slice(None, None, max(1, -(-len(flat) // self.look_ahead)))
        padding = (
            torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
            if mask is None
            else mask.flatten()
        )
        if not is_counted:
            every = slice(0)
        return Sample(flat[every].clone(), padding[every].clone())

    def extra_repr(self) -> str:
        return (
            f"score={self.score!r}, groups={self.groups}, look_ahead={self.look_ahead}, "
            f"anticipate={self.anticipate}"
        )
