"""The same architecture from transformers: GLM-4-MoE without its extras. For tests, and for
benchmarks/bench_training.py.
"""

import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM


def theirs(config):
    torch.manual_seed(0)
    return Glm4MoeForCausalLM(
        Glm4MoeConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.dense_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_heads,
            head_dim=config.hidden_size // config.num_heads,
            initializer_range=config.init_std,
            rms_norm_eps=config.norm_epsilon,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": config.rotary_base,
                "partial_rotary_factor": 1.0,
            },
            moe_intermediate_size=config.expert_size,
            num_experts_per_tok=config.top_k,
            n_shared_experts=config.shared_experts,
            n_routed_experts=config.num_experts,
            first_k_dense_replace=config.dense_layers,
            norm_topk_prob=config.renormalize,
            num_mtp_layers=0,
        )
    )


def our_state(model):
    """Their weights under our names."""
    state = {
        "embedding.weight": model.model.embed_tokens.weight,
        "norm.weight": model.model.norm.weight,
        "head.weight": model.lm_head.weight,
    }
    for n, layer in enumerate(model.model.layers):
        mlp = getattr(layer.mlp, "shared_experts", layer.mlp)
        shared = "feed_forward.shared" if mlp is not layer.mlp else "feed_forward"
        heads = layer.self_attn
        mine = {
            "attention_norm.weight": layer.input_layernorm.weight,
            "feed_forward_norm.weight": layer.post_attention_layernorm.weight,
            "attention.qkv.weight": torch.cat(
                [
                    *(
                        neighbours(each.weight, heads.head_dim)
                        for each in (heads.q_proj, heads.k_proj)
                    ),
                    heads.v_proj.weight,
                ]
            ),
            "attention.out.weight": heads.o_proj.weight,
            f"{shared}.gate_up.weight": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            f"{shared}.down.weight": mlp.down_proj.weight,
        }
        if mlp is not layer.mlp:
            mine["feed_forward.router.weight"] = layer.mlp.gate.weight
            mine["feed_forward.experts.gate_up"] = layer.mlp.experts.gate_up_proj
            mine["feed_forward.experts.down"] = layer.mlp.experts.down_proj
        state |= {f"blocks.{n}.{name}": weight for name, weight in mine.items()}
    return {name: weight.detach().clone() for name, weight in state.items()}


def neighbours(weight, head_size):
    """Rotary positions turn rows j and j + d/2 of a head in transformers, neighbours in ours."""
    return weight.view(-1, 2, head_size // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
