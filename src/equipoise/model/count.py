"""How many parameters a model has, and how many of them a token uses.

    embedding and head   V D each
    a layer              two norms of D, attention 3 D D + D D, a feed-forward
    dense feed-forward   3 D F_dense
    a MoE                router E D, routed experts 3 E D F, shared experts 3 D F each
    at the end           a norm of D

Counted by these formulas and not on a built model, so that a plan needs no torch; the tests build
models and count.
"""

from __future__ import annotations

from typing import NamedTuple

from equipoise.model.config import ModelConfig


class Parameters(NamedTuple):
    total: int
    active: int
    """all but the routed experts that a token does not take"""
    embedding: int
    """the table of input vectors, which is looked up and not multiplied; part of both"""


def count_parameters(config: ModelConfig) -> Parameters:
    """The parameters of a DeepSeekMoE of these sizes.

    Example:
        >>> from equipoise.model import MODELS
        >>> f"{count_parameters(MODELS['deepseekmoe-1b']).total / 1e9:.2f} billion"
        '1.09 billion'
    """
    D = config.hidden_size
    embedding = config.vocab_size * D
    # gate, up and down
    expert = 3 * D * config.expert_size
    layer = 2 * D + 4 * D * D
    dense = layer + 3 * D * config.dense_size
    sparse = layer + config.num_experts * D + (config.num_experts + config.shared_experts) * expert
    total = 2 * embedding + config.dense_layers * dense + config.moe_layers * sparse + D
    idle = config.moe_layers * (config.num_experts - config.top_k) * expert
    return Parameters(total, total - idle, embedding)
