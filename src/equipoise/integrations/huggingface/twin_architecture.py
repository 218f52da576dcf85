"""Which transformers architecture computes what a DeepSeekMoE of ours computes, and its weights.

    score      model_type     how it holds the shift                gates divided by their sum
    softmax    ernie4_5_moe   mlp.gate.moe_statics.e_score_...      moe_norm_min, see below
    sigmoid    glm4_moe       mlp.gate.e_score_correction_bias      norm_topk_prob

Both have plain attention with rotary positions, a norm before each half of a layer, dense layers
first, shared experts without a gate of their own, and gates from unshifted scores: all that the
paper's model has, and nothing it has not. (DeepSeek-V3's own architecture has compressed keys, so
it cannot hold our attention.)

ernie4_5_moe divides gates by max(their sum, moe_norm_min). Softmax scores sum to at most 1, so a
moe_norm_min of 1 divides by 1 and leaves the gates as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.layers import MoE, SwiGLU
from equipoise.model import DeepSeekMoE, ModelConfig
from equipoise.model.transformer import Block
from equipoise.storage.optional import import_optional

Settings = Mapping[str, object]


class TwinFamily(NamedTuple):
    """A family of transformers that can hold our model."""

    model_type: str
    bias_key: str
    """of the shift, below a layer's `mlp.`"""
    bias_shape: Callable[[int], tuple[int, ...]]
    """of the number of experts"""
    turns_neighbours: bool
    """whether rotary positions turn numbers 2j and 2j + 1 of a head, as ours do, and not j and
    j + d/2
    """
    always_shared: bool
    """whether a layer has shared experts even where there are none of them: they have no rows"""
    settings: Callable[[ModelConfig], Settings]
    """what its config calls ours"""


def twin_family(config: ModelConfig) -> TwinFamily:
    """The family that computes exactly what a model of this config does.

    Raises:
        ValueError: if transformers has none; it says which setting stands in the way.
    """
    score = config.score.replace("-", "_")
    if score not in TWIN_FAMILIES:
        raise ValueError(
            f"no family of transformers scores by {config.score} beside plain attention, so this "
            "model would be another one there: it cannot be exported. Train with "
            f"--model.score {' or '.join(TWIN_FAMILIES)} for one that can"
        )
    if not config.moe_layers:
        raise ValueError(
            "a model without MoE layers (moe_layers = 0) has no experts to export: these families "
            "are of mixtures"
        )
    if score == "sigmoid" and config.num_experts < 2:
        raise ValueError(
            "num_experts = 1 with a sigmoid cannot be exported: glm4_moe ranks groups by their two "
            "best experts"
        )
    return TWIN_FAMILIES[score]


def twin_config(config: ModelConfig, tokens: Settings) -> Any:
    """The transformers config of a model of ours; `tokens` are its special ones."""
    family = twin_family(config)
    transformers = import_optional("transformers", extra="hf")
    return transformers.AutoConfig.for_model(
        family.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.dense_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        head_dim=config.hidden_size // config.num_heads,
        max_position_embeddings=config.sequence_length,
        initializer_range=config.init_std,
        rms_norm_eps=config.norm_epsilon,
        moe_intermediate_size=config.expert_size,
        hidden_act="silu",
        tie_word_embeddings=False,
        **family.settings(config),
        **tokens,
    )


def make_twin(net: DeepSeekMoE, tokens: Settings) -> Any:
    """The transformers model with our weights and, in its own tensors, our shifts."""
    transformers = import_optional("transformers", extra="hf")
    config = twin_config(net.config, tokens)
    twin = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, trust_remote_code=False
    )
    # strict: a tensor too many or too few is an error
    twin.load_state_dict(twin_weights(net))
    return twin.eval()


@torch.no_grad()
def twin_weights(net: DeepSeekMoE) -> dict[str, Tensor]:
    """Our weights under the names of transformers."""
    family = twin_family(net.config)
    state = {
        "model.embed_tokens.weight": net.embedding.weight,
        "model.norm.weight": net.norm.weight,
        "lm_head.weight": net.head.weight,
    }
    for number, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        weights = _attention_weights(block, family) | _feed_forward_weights(block, family)
        state |= {f"model.layers.{number}.{name}": weight for name, weight in weights.items()}
    return {name: weight.detach().float().contiguous() for name, weight in state.items()}


def _attention_weights(block: Block, family: TwinFamily) -> dict[str, Tensor]:
    query, key, value = block.attention.qkv.weight.chunk(3)
    if not family.turns_neighbours:
        heads = block.attention.num_heads
        query, key = _halves_order(query, heads), _halves_order(key, heads)
    return {
        "input_layernorm.weight": block.attention_norm.weight,
        "post_attention_layernorm.weight": block.feed_forward_norm.weight,
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": block.attention.out.weight,
    }


def _halves_order(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head (d of them) in the order 0, 2, 4 ... 1, 3, 5 ..., so that the pair 2j,
    2j + 1 comes to stand at j, j + d/2.
    """
    rows = weight.unflatten(0, (heads, -1, 2))
    return rows.transpose(1, 2).reshape(weight.shape)


def _feed_forward_weights(block: Block, family: TwinFamily) -> dict[str, Tensor]:
    layer = block.feed_forward
    if not isinstance(layer, MoE):
        assert isinstance(layer, SwiGLU)
        return _dense_weights(layer, "mlp")
    shift = layer.router.balancer.shift_or_zeros
    weights = {
        "mlp.gate.weight": layer.router.weight,
        f"mlp.{family.bias_key}": shift.reshape(family.bias_shape(len(shift))),
        "mlp.experts.gate_up_proj": layer.experts.gate_up,
        "mlp.experts.down_proj": layer.experts.down,
    }
    shared = layer.shared
    if shared is None and family.always_shared:
        shared = SwiGLU(block.attention.out.in_features, 0, 0.0)
    return weights | ({} if shared is None else _dense_weights(shared, "mlp.shared_experts"))


def _dense_weights(layer: SwiGLU, prefix: str) -> dict[str, Tensor]:
    gate, up = layer.gate_up.weight.chunk(2)
    return {
        f"{prefix}.gate_proj.weight": gate,
        f"{prefix}.up_proj.weight": up,
        f"{prefix}.down_proj.weight": layer.down.weight,
    }


def _ernie_settings(config: ModelConfig) -> Settings:
    return {
        "moe_num_experts": config.num_experts,
        "moe_k": config.top_k,
        "moe_num_shared_experts": config.shared_experts,
        "moe_layer_start_index": config.dense_layers,
        "moe_layer_end_index": config.layers - 1,
        "moe_layer_interval": 1,
        "moe_norm_min": 1e-12 if config.renormalize else 1.0,
        "use_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
    }


def _glm_settings(config: ModelConfig) -> Settings:
    rotary = {"rope_type": "default", "rope_theta": config.rotary_base}
    return {
        "n_routed_experts": config.num_experts,
        "num_experts_per_tok": config.top_k,
        "n_shared_experts": config.shared_experts,
        "first_k_dense_replace": config.dense_layers,
        "norm_topk_prob": config.renormalize,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "attention_bias": False,
        "use_qk_norm": False,
        "num_mtp_layers": 0,
        "rope_parameters": {**rotary, "partial_rotary_factor": 1.0},
    }


TWIN_FAMILIES = {
    "softmax": TwinFamily(
        "ernie4_5_moe",
        "gate.moe_statics.e_score_correction_bias",
        lambda experts: (1, experts),
        True,
        False,
        _ernie_settings,
    ),
    "sigmoid": TwinFamily(
        "glm4_moe",
        "gate.e_score_correction_bias",
        lambda experts: (experts,),
        False,
        True,
        _glm_settings,
    ),
}
"""by the score function"""
