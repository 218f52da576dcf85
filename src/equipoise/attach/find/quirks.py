"""Quirks: what families of transformers do differently, and what watching a router cannot show.

How a router chooses is learnt by watching it (probe.py), so a new family needs no entry anywhere.
What stands here are the exceptions: names that transformers gives to things, routers that are not
to be balanced or that see only some tokens, and what a checkpoint's config leaves out. Nothing
outside this file names a family.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

BIAS_NAMES = ("e_score_correction_bias", "expert_bias")
"""what transformers calls a correction bias. Where a block has one and the probe does not see it
act, something is wrong.
"""

TOP_K_NAMES = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
)
"""how a config calls the number of experts a token takes"""


CAPACITY_NAMES = (
    "capacity_factor",
    "capacity_factor_train",
    "train_capacity",
    "expert_capacity",
    "expert_capacity_factor",
    "moe_capacity_factor",
    "drop_tokens",
)
"""attributes of layers that drop choices after the top-K, where an expert is full"""


@dataclass(frozen=True)
class CheckpointQuirk:
    """What the doctor must know of a family whose model it does not build."""

    score: str | None = None
    """the score function, where the config does not name it and it is not the sigmoid"""
    bias_suffix: str | None = None
    """what follows the router's block in the key of the bias, where it ends in none of
    BIAS_NAMES
    """


CHECKPOINT_QUIRKS = {
    # gpt_oss has a gate.bias too, but inside its logits: no correction bias
    "deepseek_v4": CheckpointQuirk(bias_suffix=".gate.bias"),
    "ernie4_5_moe": CheckpointQuirk(score="softmax"),
    "ernie4_5_vl_moe": CheckpointQuirk(score="softmax"),
    "ernie4_5_vl_moe_text": CheckpointQuirk(score="softmax"),
    "kolibri1": CheckpointQuirk(score="identity"),
    "longcat_flash": CheckpointQuirk(score="softmax"),
}
"""by the config's model_type"""


def checkpoint_quirk(model_type: str) -> CheckpointQuirk:
    """The quirk of a family; an empty one where it has none."""
    return CHECKPOINT_QUIRKS.get(model_type, CheckpointQuirk())


def is_hash_router(gate: nn.Module) -> bool:
    """Whether experts are looked up by token, and not chosen by scores (deepseek_v4)."""
    return "input_ids" in inspect.signature(gate.forward).parameters


def capacity_attribute(*modules: nn.Module) -> str | None:
    """The attribute that shows that a layer may drop choices, or None."""
    for module in modules:
        for name in CAPACITY_NAMES:
            if isinstance(getattr(module, name, None), int | float) and getattr(module, name):
                return name
    return None


def has_picture_router(module: nn.Module) -> bool:
    """Whether a layer has one router for text and one for pictures (ernie4_5_vl_moe)."""
    return hasattr(module, "text_moe") and hasattr(module, "vision_moe")


def routes_pictures(router_name: str) -> bool:
    """Whether a router sees tokens of pictures only: it rests while a batch has none."""
    return router_name.endswith("vision_moe")


def picture_tokens(args: tuple[Any, ...], kwargs: dict[str, object]) -> Tensor | None:
    """(T,) bool, from the arguments of such a layer: which tokens are of a picture."""
    kinds: Any = kwargs.get("moe_mm_token_type_ids", args[1] if len(args) > 1 else None)
    return None if kinds is None else kinds.bool().flatten()
