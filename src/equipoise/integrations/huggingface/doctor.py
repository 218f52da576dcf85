"""Doctor: look at the correction biases of a checkpoint, without loading the model.

A bias adds one number per expert, and only differences matter: a common offset changes nothing but
costs digits, and bf16 has eight of them. So for every layer: what is stored, how far it is spread,
how many values are left in bf16, and how many tokens would choose other experts if it were rounded.

The last needs scores. Recorded ones are taken from a trace. Without a trace they are drawn: hidden
states with independent standard normal coordinates (what an RMS norm passes to a router), through
the gate's own weights; where these are not found, logits that are standard normal themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from equipoise.attach.find.routers import dtype_name
from equipoise.attach.find.routing_spec import score_by_name
from equipoise.attach.state.sidecar import SIDECAR_NAME, stored_shifts
from equipoise.attach.tables import text_table
from equipoise.integrations.huggingface.checkpoint import (
    RoutingConfig,
    StoredBias,
    read_biases,
    read_routing_config,
)
from equipoise.integrations.huggingface.findings import (
    Finding,
    ScoreSource,
    kept_beside,
    serious_advice,
    shift_beside,
    worst_finding,
)
from equipoise.routing import route
from equipoise.trace import Trace

SAMPLED_TOKENS = 2048
_DOCTOR_HEADER = (
    "layer", "stored", "offset", "spread", "values", "in bf16", "changed", "centred", "scores",
)  # fmt: skip


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
    serious: list[str] = field(default_factory=list)
    """those lines of the advice that say that the checkpoint, as it is, chooses other experts than
    were trained
    """
    sidecar: str | None = None
    """the file of equipoise beside the model, if there is one"""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [
            [
                each.layer,
                each.dtype,
                float(f"{each.mean:.2g}"),
                float(f"{each.spread:.3g}"),
                each.distinct,
                each.distinct_bf16,
                f"{each.changed_bf16:.1%}",
                f"{each.changed_centred:.1%}",
                each.scores,
            ]
            for each in self.findings
        ]
        experts = " or ".join(sorted({str(each.experts) for each in self.findings}))
        how = f"{self.family}: top-{self.top_k} of {experts} experts by {self.score} + bias"
        how += "" if self.groups is None else f", {self.groups[1]} of {self.groups[0]} groups"
        return "\n".join(
            [
                self._verdict_line(),
                how,
                "",
                text_table(_DOCTOR_HEADER, rows),
                "",
                *self._advice_lines(),
            ]
        )

    def _verdict_line(self) -> str:
        found = f"{len(self.serious)} serious" if self.serious else "Nothing serious"
        beside = "" if self.sidecar is None else f"; {self.sidecar} stands beside the model"
        return f"{found}{beside}."

    def _advice_lines(self) -> list[str]:
        return [f"- {'SERIOUS: ' * (line in self.serious)}{line}" for line in self.advice]


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

    Example:
        >>> diagnosis = equipoise.doctor("my-model")  # doctest: +SKIP
        >>> print(diagnosis)  # doctest: +SKIP
    """
    folder = Path(folder)
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, not {tokens}")
    config = read_routing_config(folder)
    recorded = None if trace is None else Trace.open(trace)
    rng = torch.Generator().manual_seed(seed)
    beside = stored_shifts(folder)
    findings = [
        _examine_bias(stored, config, recorded, tokens, rng, shift_beside(beside, stored))
        for stored in read_biases(folder, config)
    ]
    findings = findings or [
        replace(
            _examine_bias(kept_beside(name, shift), config, recorded, tokens, rng, None),
            only_in_sidecar=True,
        )
        for name, shift in beside.items()
    ]
    if not findings:
        raise ValueError(
            f"{folder} ({config.family}) holds no correction bias. equipoise.balance(model) gives "
            "such a model a shift of its own"
        )
    serious = serious_advice(findings)
    return Diagnosis(
        config.family,
        config.top_k,
        config.score,
        config.groups,
        findings,
        [*serious, *_give_advice(findings)] or ["nothing to worry about"],
        serious,
        SIDECAR_NAME if beside else None,
    )


def _examine_bias(
    stored: StoredBias,
    config: RoutingConfig,
    trace: Trace | None,
    tokens: int,
    rng: torch.Generator,
    beside: Tensor | None,
) -> Finding:
    finite = bool(stored.bias.isfinite().all())
    # what is not finite is told by `finite`; the other experts are still looked at
    bias = stored.bias.float().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
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
        finite=finite,
        off_sidecar=None if beside is None else float((bias - beside).abs().max()),
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
        route(scores, config.top_k, shift=bias, groups=config.groups, runner_up=False)
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
    stored_short = [each for each in moved if each.dtype in ("bfloat16", "float16")]
    fragile = [each for each in moved if each not in stored_short and each.changed_bf16 > 0.01]
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
    if recoverable := [each for each in stored_short if not each.lost_digits]:
        lines.append(
            f"{len(recoverable)} biases are stored in {recoverable[0].dtype}, and {SIDECAR_NAME} "
            "has all their digits: equipoise.balance(model) reads them from there"
        )
    if fragile:
        worst = worst_finding(fragile)
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
    return lines
