"""Doctor: look at the correction biases of a checkpoint, without loading the model.

A bias adds one number per expert, and only differences matter: a common offset changes nothing but
costs digits, and bf16 has eight of them. So for every layer: what is stored, how far it is spread,
how many values are left in bf16, and how many tokens would choose other experts if it were rounded.

The last needs scores. Recorded ones are taken from a trace. Without a trace they are drawn: hidden
states with independent standard normal coordinates (what an RMS norm passes to a router), through
the gate's own weights; where these are not found, logits that are standard normal themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from equipoise.attach.find.routers import dtype_name
from equipoise.attach.find.routing_spec import score_by_name
from equipoise.attach.tables import text_table
from equipoise.integrations.huggingface.checkpoint import (
    RoutingConfig,
    StoredBias,
    read_biases,
    read_routing_config,
)
from equipoise.routing import route
from equipoise.trace import Trace

ScoreSource = Literal["trace", "gate", "normal"]
"""recorded; drawn through the gate's own weights; drawn as logits"""

SAMPLED_TOKENS = 2048
_DOCTOR_HEADER = (
    "layer", "stored", "experts", "offset", "spread", "values", "in bf16", "changed", "centred",
    "scores",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One layer's bias."""

    layer: str
    key: str
    dtype: str
    experts: int
    mean: float
    """the common offset"""
    spread: float
    """greatest minus least"""
    distinct: int
    """different values"""
    distinct_bf16: int
    """different values left in bf16"""
    moved: bool
    """whether any value is not 0"""
    changed_bf16: float
    """share of tokens that would choose other experts after rounding; where the bias is stored in
    bf16 already, an estimate of those that did
    """
    changed_centred: float
    """the same, if the common offset is subtracted first"""
    scores: ScoreSource
    """where the scores came from: trace, gate or normal"""


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found in a checkpoint; `print` it for a table."""

    family: str
    top_k: int
    score: str
    groups: tuple[int, int] | None
    """(number, kept)"""
    findings: list[Finding]
    advice: list[str]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [
            [
                each.layer,
                each.dtype,
                each.experts,
                each.mean,
                each.spread,
                each.distinct,
                each.distinct_bf16,
                f"{each.changed_bf16:.1%}",
                f"{each.changed_centred:.1%}",
                each.scores,
            ]
            for each in self.findings
        ]
        how = f"{self.family}: top-{self.top_k} by {self.score} + bias"
        how += "" if self.groups is None else f", {self.groups[1]} of {self.groups[0]} groups"
        return "\n".join(
            [how, "", text_table(_DOCTOR_HEADER, rows), "", *(f"- {line}" for line in self.advice)]
        )


def doctor(
    folder: str | Path, trace: str | Path | None = None, tokens: int = SAMPLED_TOKENS, seed: int = 0
) -> Diagnosis:
    """Examine a folder that save_pretrained wrote.

    Args:
        folder: with config.json and .safetensors files, sharded or not.
        trace: a trace with sampled scores of the same model, recorded by `equipoise.balance(...,
            trace=...)`.
        tokens: how many to draw where no scores were recorded.
        seed: of the draw.
    """
    folder = Path(folder)
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, not {tokens}")
    config = read_routing_config(folder)
    recorded = None if trace is None else Trace.open(trace)
    rng = torch.Generator().manual_seed(seed)
    findings = [
        _examine_bias(stored, config, recorded, tokens, rng)
        for stored in read_biases(folder, config)
    ]
    if not findings:
        raise ValueError(
            f"{folder} ({config.family}) holds no correction bias. equipoise.balance(model) gives "
            "such a model a shift of its own"
        )
    return Diagnosis(
        config.family, config.top_k, config.score, config.groups, findings, _give_advice(findings)
    )


def _examine_bias(
    stored: StoredBias,
    config: RoutingConfig,
    trace: Trace | None,
    tokens: int,
    rng: torch.Generator,
) -> Finding:
    bias = stored.bias.float()
    scores, source = _sample_scores(stored, config, trace, tokens, rng)
    rounded = bias.bfloat16().float()
    before = bias if stored.bias.dtype != torch.bfloat16 else _undo_rounding(bias, rng)
    centred = bias - bias.mean()
    return Finding(
        layer=stored.layer,
        key=stored.key,
        dtype=dtype_name(stored.bias.dtype),
        experts=bias.numel(),
        mean=float(bias.double().mean()),
        spread=float(bias.max() - bias.min()),
        distinct=bias.unique().numel(),
        distinct_bf16=rounded.unique().numel(),
        moved=bool(bias.any()),
        changed_bf16=_changed_share(scores, before, rounded, config),
        changed_centred=_changed_share(scores, centred, centred.bfloat16().float(), config),
        scores=source,
    )


def _sample_scores(
    stored: StoredBias,
    config: RoutingConfig,
    trace: Trace | None,
    tokens: int,
    rng: torch.Generator,
) -> tuple[Tensor, ScoreSource]:
    """(T, E) scores of a layer, and where they came from."""
    if trace is not None:
        return _recorded_scores(trace, stored), "trace"
    score = score_by_name(config.score)
    if stored.gate is None:
        return score(torch.randn(tokens, stored.bias.numel(), generator=rng)), "normal"
    weight = stored.gate.float()
    return score(torch.randn(tokens, weight.shape[1], generator=rng) @ weight.T), "gate"


def _recorded_scores(trace: Trace, stored: StoredBias) -> Tensor:
    """All scores that a trace kept of a layer; its names may lack a prefix of the checkpoint's."""
    names = [
        name for name in trace.layers if name == stored.layer or stored.layer.endswith(f".{name}")
    ]
    if len(names) != 1:
        raise ValueError(f"the trace has no layer {stored.layer}: it has {', '.join(trace.layers)}")
    kept = [trace.record(names[0], step).scores for step in trace.steps(names[0])]
    rows = torch.cat([torch.as_tensor(scores) for scores in kept]).float()
    if not len(rows):
        raise ValueError(f"the trace kept no scores of {names[0]}: record it with trace_scores=256")
    return rows


def _changed_share(scores: Tensor, before: Tensor, after: Tensor, config: RoutingConfig) -> float:
    """The share of tokens whose set of experts differs under two biases."""
    chosen = [
        route(scores, config.top_k, choose_by=scores + bias, groups=config.groups, runner_up=False)
        .experts.sort(1)
        .values
        for bias in (before, after)
    ]
    return float((chosen[0] != chosen[1]).any(1).double().mean())


def _undo_rounding(bias: Tensor, rng: torch.Generator) -> Tensor:
    """A float32 bias that would have been rounded to this one: each value anywhere within half a
    bf16 step.
    """
    step = torch.ldexp(torch.ones_like(bias), torch.frexp(bias.abs()).exponent - 8) * (bias != 0)
    return bias + step * (torch.rand(bias.shape, generator=rng) - 0.5)


def _give_advice(findings: list[Finding]) -> list[str]:
    moved = [each for each in findings if each.moved]
    rounded = [each for each in moved if each.dtype in ("bfloat16", "float16")]
    fragile = [each for each in moved if each not in rounded and each.changed_bf16 > 0.01]
    offset = [
        each
        for each in moved
        if abs(each.mean) > each.spread and each.changed_bf16 > 2 * each.changed_centred
    ]
    lines = []
    if still := len(findings) - len(moved):
        lines.append(
            f"{still} of {len(findings)} biases are exactly 0: they never moved. Training with "
            "transformers does not move them; equipoise.balance(model) does"
        )
    if rounded:
        worst = _worst_finding(rounded)
        lines.append(
            f"{len(rounded)} biases are stored in {rounded[0].dtype}: digits are lost for good "
            f"(an estimated {worst.changed_bf16:.1%} of tokens chose other experts before, in "
            f"{worst.layer}). Store and load them in float32"
        )
    if fragile:
        worst = _worst_finding(fragile)
        lines.append(
            f"do not cast these to bf16: {worst.changed_bf16:.1%} of tokens would choose other "
            f"experts in {worst.layer}; there {worst.distinct} values become "
            f"{worst.distinct_bf16}. model.to(torch.bfloat16) casts them"
        )
    if offset:
        lines.append(
            f"{len(offset)} biases have a common offset larger than their spread, which changes "
            "no choice and costs digits. Subtract each layer's mean before rounding (free where "
            "groups are masked with -inf: transformers 5.6 and later)"
        )
    return lines or ["nothing to worry about"]


def _worst_finding(findings: list[Finding]) -> Finding:
    return max(findings, key=lambda each: each.changed_bf16)
