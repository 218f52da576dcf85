"""Every family of transformers that has routers, as small as it will go: two layers or so, width
32, 8 experts.

Sizes are overridden where a default config has the attribute; what a family wants besides stands in
its row. Families that an installed transformers does not have are not listed by `present()`.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.logging.set_verbosity_error()

NUM_EXPERTS, TOP_K = 8, 2
VOCABULARY = 64
SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "intermediate_size", "index_head_dim"), 32),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16
    ),
    **dict.fromkeys(
        ("moe_shared_expert_intermediate_size", "shared_intermediate_size", "ffn_hidden_size"), 16
    ),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "index_n_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_heads"), 4),
    **dict.fromkeys(("linear_num_heads", "linear_num_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(
        ("head_dim", "linear_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8
    ),
    **dict.fromkeys(
        ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8
    ),
    **dict.fromkeys(
        ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"), NUM_EXPERTS
    ),
    **dict.fromkeys(
        ("num_experts_per_tok", "moe_topk", "moe_top_k", "top_k_experts", "moe_k"), TOP_K
    ),
    **dict.fromkeys(
        (
            "n_group",
            "topk_group",
            "first_k_dense_replace",
            "n_shared_experts",
            "num_shared_experts",
        ),
        1,
    ),
    **dict.fromkeys(("moe_num_shared_experts", "num_dense_layers"), 1),
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "sliding_window": 16,
    "index_topk": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPS = {"n_group": 4, "topk_group": 2}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SPARSE = {"mlp_layer_types": ["dense", "sparse"]}
BOTH_ATTENTIONS = {"layer_types": ["sliding_attention", "full_attention"]}


@dataclass(frozen=True)
class Family:
    name: str
    bias: str | None = None
    """where the bias is, inside the block; None where there is none"""
    score: str = "softmax"
    overrides: dict[str, Any] = field(default_factory=dict)
    grouped: bool = False
    num_experts: int = NUM_EXPERTS
    """what the router counts: zero-experts too"""
    top_k: int = TOP_K
    parts: tuple[str, str] | None = None
    """names of the config and model class, where the auto classes do not know the text model alone
    """
    left_alone: int = 0
    """routers that are knowingly not balanced"""

    def __str__(self) -> str:
        return self.name

    def config(self) -> Any:
        cls = self._config_class()
        default = cls()
        sizes = {name: value for name, value in SIZES.items() if _is_a_number(default, name)}
        return cls(**{**sizes, **(GROUPS if self.grouped else {}), **self.overrides})

    def model(self, seed: int = 0) -> torch.nn.Module:
        torch.manual_seed(seed)
        model = self._build()
        for parameter in model.parameters():
            if (
                parameter.dim() == 2
                and len(parameter) > 1
                and not parameter.is_meta
                and not parameter.any()
            ):
                # some gates start at 0, where all scores tie
                torch.nn.init.normal_(parameter, std=0.1)
        return model

    def _build(self) -> torch.nn.Module:
        config = self.config()
        if self.parts is not None:
            return self._part("modeling", self.parts[1])(config)
        try:
            return transformers.AutoModelForCausalLM.from_config(config)
        except ValueError:
            return transformers.AutoModel.from_config(config)

    def _config_class(self) -> Any:
        if self.parts is not None:
            return self._part("configuration", self.parts[0])
        cls = CONFIG_MAPPING[self.name]
        inner = getattr(cls, "sub_configs", {}).get("text_config")
        return cls if inner is None else type(cls().text_config)

    def _part(self, kind: str, name: str) -> Any:
        module = importlib.import_module(f"transformers.models.{self.name}.{kind}_{self.name}")
        as_in_5_0 = name.replace("VLMoe", "VL_Moe")
        return getattr(module, name, None) or getattr(module, as_in_5_0)


def _is_a_number(config: Any, name: str) -> bool:
    try:
        value = getattr(config, name)
    except Exception:  # gemma4 refuses to tell sizes that differ between its layers
        return False
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


GATE, STATICS, BLOCK = (
    "gate.e_score_correction_bias",
    "gate.moe_statics.e_score_correction_bias",
    "e_score_correction_bias",
)

WITH_BIAS = [
    Family("axk1", GATE, "sigmoid", grouped=True),
    Family("axk2", GATE, "sigmoid", grouped=True),
    Family("bailing_hybrid", GATE, "sigmoid", grouped=True),
    Family("beam", GATE, "sigmoid", {**SPARSE, **BOTH_ATTENTIONS}, grouped=True),
    Family("deepseek_v3", GATE, "sigmoid", grouped=True),
    Family("deepseek_v32", GATE, "sigmoid", grouped=True),
    Family(
        "deepseek_v4", GATE, "sqrt_softplus", {"mlp_layer_types": ["hash_moe", "moe"]}, left_alone=1
    ),
    Family("dots1", GATE, "sigmoid", grouped=True),
    Family("ernie4_5_moe", STATICS, "softmax"),
    Family(
        "ernie4_5_vl_moe",
        STATICS,
        "softmax",
        {
            **SPARSE,
            "moe_intermediate_size": [16, 16],
            "rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]},
        },
        parts=("Ernie4_5_VLMoeTextConfig", "Ernie4_5_VLMoeTextModel"),
    ),
    Family("exaone_moe", GATE, "sigmoid", grouped=True),
    Family("glm4_moe", GATE, "sigmoid", grouped=True),
    Family("glm4_moe_lite", GATE, "sigmoid", grouped=True),
    Family(
        "glm4v_moe",
        GATE,
        "sigmoid",
        {"rope_parameters": {**ROPE, "partial_rotary_factor": 1.0, "mrope_section": [2, 1, 1]}},
        grouped=True,
    ),
    Family("glm5_next", GATE, "sigmoid", {**SPARSE, "qk_rope_head_dim": 0}, grouped=True),
    Family("glm_moe_dsa", GATE, "sigmoid", SPARSE, grouped=True),
    Family("hy_v3", BLOCK, "sigmoid"),
    Family("hy_v4", GATE, "sigmoid", grouped=True),
    Family("inkling", GATE, "sigmoid", SPARSE, parts=("InklingTextConfig", "InklingForCausalLM")),
    Family("kimi_linear", GATE, "sigmoid", grouped=True),
    Family("kolibri1", GATE, "identity"),
    Family("laguna", GATE, "sigmoid"),
    Family(
        "longcat_flash",
        "router.e_score_correction_bias",
        "softmax",
        {"zero_expert_num": 4},
        num_experts=NUM_EXPERTS + 4,
    ),
    Family("mimo_v2_flash", GATE, "sigmoid", {"num_key_value_heads": 2}, grouped=True),
    Family("minimax_m2", BLOCK, "sigmoid"),
    Family("minimax_m3_vl", GATE, "sigmoid"),
    Family("muse_spark", GATE, "sigmoid"),
    Family("nemotron_h", GATE, "sigmoid", grouped=True),
    Family("solar_open", GATE, "sigmoid", grouped=True),
    Family("step3p7", GATE, "sigmoid", SPARSE, parts=("Step3p7TextConfig", "Step3p7TextModel")),
    Family("lfm2_moe", "expert_bias", "sigmoid", {"layer_types": ["full_attention", "conv"]}),
    Family("afmoe", "expert_bias", "sigmoid"),
]

WITHOUT_BIAS = [
    Family("aria", score="identity"),
    Family("cohere2_moe", score="identity"),
    Family(
        "dbrx",
        overrides={
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
            # before 5.13 its router took ffn_hidden_size for the model's width: both must be one
            # number
            "ffn_config": {
                "hidden_size": 32,
                "ffn_hidden_size": 32,
                "moe_num_experts": NUM_EXPERTS,
                "moe_top_k": TOP_K,
            },
        },
    ),
    Family(
        "deepseek_ocr2", overrides=SPARSE, parts=("DeepseekOcr2TextConfig", "DeepseekOcr2TextModel")
    ),
    Family("deepseek_v2"),
    Family("flex_olmo"),
    Family("flint", score="sigmoid", overrides={"mlp_only_layers": [0]}),
    Family(
        "gemma4",
        score="identity",
        overrides={
            "enable_moe_block": True,
            "hidden_size_per_layer_input": 0,
            "global_head_dim": 8,
            "head_dim": 8,
        },
    ),
    Family("gpt_oss", score="identity"),
    Family("granitemoe", score="identity"),
    Family("granitemoe_swa", score="identity"),
    Family(
        "granitemoehybrid",
        score="identity",
        overrides={"layer_types": ["attention", "attention"], "mamba_n_heads": 4},
    ),
    Family("granitemoeshared", score="identity"),
    Family("hunyuan_v1_moe"),
    # older ones want CUDA kernels otherwise
    Family("jamba", overrides={"use_mamba_kernels": False}),
    Family("llama4", score="identity"),
    Family("mellum"),
    Family("minimax"),
    Family("mistral4", overrides={"head_dim": 16}, grouped=True),
    Family("mistral_large4", grouped=True),
    Family("mixtral"),
    Family("olmoe"),
    Family("openai_privacy_filter", score="identity"),
    Family("qwen2_moe"),
    Family("qwen3_5_moe"),
    Family("qwen3_moe"),
    Family("qwen3_next"),
    Family("qwen3_omni_moe", parts=("Qwen3OmniMoeTextConfig", "Qwen3OmniMoeThinkerTextModel")),
    # 5.0's config has none, and its model asks for it
    Family("qwen3_vl_moe", overrides={"pad_token_id": 0}),
    Family("qwen4_exp"),
    Family("unlimited_ocr", parts=("UnlimitedOcrTextConfig", "UnlimitedOcrTextModel")),
]

REFUSED = {
    "phimoe": "chooses without torch.topk",
    "switch_transformers": "chooses without torch.topk",
    "nllb-moe": "chooses without torch.topk",
    "zaya": "rewrites its choice",
}
"""families whose routers are refused, and the reason that is given"""

NOT_BUILT = {
    "diffusion_gemma": "its text model is not built apart from its diffusion heads; its router "
    "is gemma4's"
}
"""families not tested, and why"""


VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
NEWEST = (5, 22)
"""the version that has every family above"""
SINCE = {
    "aria": ((5, 18), "chooses without torch.topk"),
    **dict.fromkeys(
        ("granitemoe", "granitemoehybrid", "granitemoeshared"),
        # their gate of then is found as a layer of one's own, which other tests are about
        ((5, 13), None),
    ),
}
"""families that chose inside their experts before a version of transformers, and what is said of
them there
"""
LOGITS_SINCE = {"afmoe": (5, 4), "longcat_flash": (5, 19)}
"""families whose gate returned no logits before a version"""
BROKEN = {(5, 4): ("ernie4_5_moe", "ernie4_5_vl_moe", "olmoe")}
"""families whose own default config is refused by huggingface_hub 1.33: an int is declared and a
bool given
"""


def present(families: list[Family]) -> list[Family]:
    """Those the installed transformers has, in a form that can be balanced."""
    return [family for family in families if _is_installed(family) and not _is_too_old(family)]


def too_old(families: list[Family]) -> list[Family]:
    """Those the installed transformers has in an older form, which is refused."""
    return [family for family in families if _is_installed(family) and _is_too_old(family)]


def returns_logits(family: Family) -> bool:
    return LOGITS_SINCE.get(family.name, (5, 0)) <= VERSION


def _is_installed(family: Family) -> bool:
    built = family.name not in BROKEN.get(VERSION, ())
    return built and importlib.util.find_spec(f"transformers.models.{family.name}") is not None


def _is_too_old(family: Family) -> bool:
    return family.name in SINCE and SINCE[family.name][0] > VERSION
