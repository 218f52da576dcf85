"""DeepSeekMoE (Dai et al. 2024) as the paper's section 3.1 trains it.

    x = embedding(tokens)
    for each layer:   x = x + attention(norm(x));   x = x + feed_forward(norm(x))
    loss = cross entropy of head(norm(x))

The first feed-forward is dense; the others are Mixtures-of-Experts with shared experts. Each MoE
layer has its own balancer. The forward is pure: what the layers counted is returned, and the
training loop updates the balancers.

Shapes: B sequences, S tokens of each, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from equipoise.balancing import resolve_balancer
from equipoise.balancing.resolve import BalancerFactory
from equipoise.layers import MoE, MoEOutput, Sample, SwiGLU
from equipoise.model.attention import Attention, Rotary
from equipoise.model.config import ModelConfig
from equipoise.model.loss import linear_cross_entropy
from equipoise.model.norm import RMSNorm
from equipoise.routing import Routing, Tally


class ModelOutput(NamedTuple):
    """What a forward returns; the lists have one entry for every MoE layer, in order."""

    loss: Tensor | None
    """mean cross entropy over all targets; None if there were no targets"""
    logits: Tensor | None
    """(B, S, V); None if there were targets: with a loss they are never held whole"""
    penalty: Tensor
    """the sum of the balancers' penalties, to be added to the loss"""
    tallies: list[Tally]
    samples: list[Sample | None]
    routings: list[Routing]
    """in evaluation only: in training nobody looks at them, and they would be kept until backward
    """


class Block(nn.Module):
    """One layer: attention and a feed-forward, each behind a norm and beside a residual."""

    def __init__(self, config: ModelConfig, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.feed_forward = feed_forward

    def forward(self, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, MoEOutput | None]:
        hidden = hidden + self.attention(self.attention_norm(hidden), rotary)
        result = self.feed_forward(self.feed_forward_norm(hidden))
        if isinstance(self.feed_forward, MoE):
            kept = result._replace(output=None, routing=None if self.training else result.routing)
            return hidden + result.output, kept
        return hidden + result, None


class DeepSeekMoE(nn.Module):
    """The whole model.

    Args:
        config: its sizes.
        balancer: a name, or a function (num_experts, top_k) -> Balancer, called once for every MoE
            layer.
        look_ahead: inputs each router keeps to be scored again after the optimizer's step; 0 keeps
            none.
        recompute: forget activations inside layers and compute them again in backward, which saves
            memory.

    Example:
        >>> from equipoise.model import MODELS
        >>> model = DeepSeekMoE(MODELS["tiny"])
        >>> model(torch.zeros(1, 8, dtype=torch.long)).logits.shape
        torch.Size([1, 8, 4096])
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        balancer: str | BalancerFactory = "deepseek",
        look_ahead: int = 0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.recompute = recompute
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = Rotary(
            config.hidden_size // config.num_heads, config.sequence_length, config.rotary_base
        )
        self.blocks = nn.ModuleList(
            Block(config, _feed_forward(config, layer, balancer, look_ahead))
            for layer in range(config.layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for weight in (self.embedding.weight, self.head.weight):
            nn.init.normal_(weight, std=config.init_std)

    @property
    def moe_layers(self) -> dict[str, MoE]:
        """The MoE layers by name, in the order of the lists in ModelOutput."""
        return {
            f"blocks.{n}": block.feed_forward
            for n, block in enumerate(self.blocks)
            if isinstance(block, Block) and isinstance(block.feed_forward, MoE)
        }

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> ModelOutput:
        """Read tokens (B, S). With targets (B, S), the tokens that should come next, return the
        loss, else the logits.
        """
        if tokens.shape[1] > self.config.sequence_length:
            raise ValueError(
                f"{tokens.shape[1]} tokens are too many: sequence_length is "
                f"{self.config.sequence_length}"
            )
        hidden = self.embedding(tokens)
        layers = []
        for block in self.blocks:
            hidden, layer = self._pass(block, hidden)
            if layer is not None:
                layers.append(layer)
        hidden = self.norm(hidden)
        loss = None if targets is None else linear_cross_entropy(hidden, self.head.weight, targets)
        return ModelOutput(
            loss=loss,
            logits=self.head(hidden) if targets is None else None,
            penalty=sum((layer.penalty for layer in layers), start=hidden.new_zeros(())),
            tallies=[layer.tally for layer in layers],
            samples=[layer.sample for layer in layers],
            routings=[layer.routing for layer in layers if layer.routing is not None],
        )

    def _pass(self, block: nn.Module, hidden: Tensor) -> tuple[Tensor, MoEOutput | None]:
        if self.recompute and self.training:
            return checkpoint(block, hidden, self.rotary, use_reentrant=False)
        return block(hidden, self.rotary)


def _feed_forward(
    config: ModelConfig, layer: int, balancer: str | BalancerFactory, look_ahead: int
) -> nn.Module:
    if layer < config.dense_layers:
        return SwiGLU(config.hidden_size, config.dense_size, config.init_std)
    return MoE(
        config.hidden_size,
        config.expert_size,
        config.num_experts,
        config.top_k,
        balancer=resolve_balancer(balancer, config.num_experts, config.top_k, per_layer=True),
        shared_experts=config.shared_experts,
        score=config.score,
        renormalize=config.renormalize,
        look_ahead=look_ahead,
        init_std=config.init_std,
    )
