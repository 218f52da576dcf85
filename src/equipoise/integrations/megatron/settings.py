"""Megatron's config, read by what our router understands of it. The rest is refused by name.

A setting that is silently ignored is the worst answer, and Megatron gains settings with every
release. So every `moe_router_...` that is not in the list below must have its default value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from equipoise.balancing import Dual
from equipoise.balancing.shift.parts import Sign
from equipoise.integrations.megatron.gates import GateSettings
from equipoise.routing import Groups

_UNDERSTOOD = (
    "load_balancing_type",
    "topk",
    "topk_limited_devices",
    "num_groups",
    "group_topk",
    "pre_softmax",
    "topk_scaling_factor",
    "score_function",
    "dtype",
    "enable_expert_bias",
    "bias_update_rate",
    "fusion",
    "force_load_balancing",
    "force_biased",
    "padding_for_quantization",
    "padding_for_fp8",
)
_LOSSES = {"none", "aux_loss", "seq_aux_loss", "global_aux_loss"}
_SCORES = ("softmax", "sigmoid", "sqrtsoftplus")
_DEFAULT_BIAS_RATE = 1e-3

_OFF = (None, False, "none")
_MUST_BE_OFF = {
    "moe_router_enable_expert_bias": "Megatron's own bias would balance beside ours",
    "moe_router_fusion": "the fused kernel chooses experts itself, without a shift",
    "moe_enable_routing_replay": "experts would be chosen by the replay, and a shift move in vain",
    "enable_cuda_graph": "counts inside a CUDA graph were not tried",
    "external_cuda_graph": "counts inside a CUDA graph were not tried",
    "cuda_graph_impl": "counts inside a CUDA graph were not tried",
}


def read_gate_settings(config: Any) -> GateSettings:
    """How scores and gates are computed, as the config says now: Megatron reads it every time."""
    _refuse_scores(config)
    top_k, keep = config.moe_router_topk, config.moe_router_group_topk
    groups = Groups(config.moe_router_num_groups, keep, top_k // keep) if keep else None
    return GateSettings(
        top_k=top_k,
        score_function=config.moe_router_score_function,
        pre_softmax=config.moe_router_pre_softmax,
        scaling_factor=config.moe_router_topk_scaling_factor,
        groups=groups,
    )


def is_forced(config: Any) -> bool:
    """Whether Megatron replaces the logits by random ones, for a benchmark.

    Nothing is to be learned from those: no shift is applied then, and none moves.
    """
    biased = getattr(config, "moe_router_force_biased", None)
    return biased is not None or getattr(config, "moe_router_force_load_balancing", False)


def options_with_rate(
    made: Dual, name: str, options: Mapping[str, object], config: Any
) -> Mapping[str, object]:
    """The options, with Megatron's moe_router_bias_update_rate where that rate was set.

    It is a rate of the rules of the sign. Others measure a rate in other units, and then a rate of
    Megatron's is refused, as one that contradicts `update_rate` is.
    """
    rate, asked = config.moe_router_bias_update_rate, options.get("update_rate")
    if rate in (_DEFAULT_BIAS_RATE, asked):
        return options
    if asked is None and any(isinstance(part, Sign) for part in made.parts):
        return {**options, "update_rate": rate}
    raise ValueError(
        f"moe_router_bias_update_rate is {rate}, a rate of Megatron's sign rule, and {name} has "
        f"{'another' if asked is None else f'update_rate={asked}'}: leave Megatron's at "
        f"{_DEFAULT_BIAS_RATE}, and give router({name!r}, update_rate=...) its own"
    )


def refuse_unsupported(config: Any) -> None:
    """Refuse every setting that our router does not know, or cannot serve."""
    for name, reason in _MUST_BE_OFF.items():
        if getattr(config, name, None) not in _OFF:
            raise ValueError(
                f"{name} is {getattr(config, name)!r}, which equipoise's router does not support: "
                f"{reason}. Switch it off"
            )
    _refuse_losses(config)
    _refuse_scores(config)
    if getattr(config, "transformer_impl", None) == "inference_optimized":
        raise ValueError(
            'transformer_impl is "inference_optimized", which needs Megatron\'s own inference '
            "router: train with equipoise's, and serve without it"
        )
    for field in dataclasses.fields(config):
        head, prefix, name = field.name.partition("moe_router_")
        of_router = prefix and not head and name not in _UNDERSTOOD
        if of_router and getattr(config, field.name) != field.default:
            raise ValueError(
                f"{field.name} is {getattr(config, field.name)!r}: equipoise's router does not "
                f"know this setting. Leave it at {field.default!r}"
            )


def _refuse_losses(config: Any) -> None:
    kinds = config.moe_router_load_balancing_type
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _LOSSES:
            raise ValueError(
                f"moe_router_load_balancing_type is {kinds!r}: {kind!r} chooses experts in another "
                f"way than by a shift. Choose of {', '.join(sorted(_LOSSES))}"
            )


def _refuse_scores(config: Any) -> None:
    score, keep = config.moe_router_score_function, config.moe_router_group_topk
    if score not in _SCORES:
        raise ValueError(
            f"moe_router_score_function is {score!r}: equipoise's router knows {', '.join(_SCORES)}"
        )
    if keep and score == "softmax" and not config.moe_router_pre_softmax:
        raise ValueError(
            "moe_router_group_topk with softmax gates needs moe_router_pre_softmax: without it "
            "Megatron ranks groups by sums of logits, to which a shift of scores cannot be added"
        )
    if keep and config.moe_router_topk < keep:
        raise ValueError(
            f"moe_router_topk = {config.moe_router_topk} is less than moe_router_group_topk = "
            f"{keep}: Megatron would rank groups by an empty sum"
        )
