"""plan: what a training would cost, before anybody pays for it.

    plan("deepseekmoe-1b", gpus=8)

With N active parameters that are multiplied (all but the input embedding), S tokens in a sequence
and D the hidden size:

    FLOPs per token   6 N + 6 layers S D: forward and backward; attention sees S/2 tokens on average
    hours             tokens * FLOPs / (gpus * peak * utilization)
    memory per GPU    16 bytes a parameter (weight, gradient and AdamW's two moments in float32;
                      shared out under fsdp) + activations of a micro-batch + logits
    epochs            tokens / tokens of the corpus

What imbalance costs, where experts are spread over the GPUs. Every MoE layer waits for its fullest
GPU; how full that is follows from the imbalance (costs/fullest.py). All others are idle for that
excess, in the part of the time that experts take. With a cluster's name the exchange of tokens
between its GPUs is counted too (step_time.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from equipoise.costs.devices import GPUS
from equipoise.costs.fullest import check_imbalance, expected_excess
from equipoise.costs.workload import Workload
from equipoise.model import ModelConfig, count_parameters
from equipoise.training.config import Config, micro_batch_size
from equipoise.training.config import preset as training_preset

# Tokens in the training split. WikiText-103 as GPT-2 reads it: the paper's 26.2 billion tokens are
# about 220 epochs of it. The docstrings depend on what is installed.
CORPORA = {"wikitext-103": 119_000_000, "docstrings": 6_200_000}
BYTES_PER_PARAMETER = 16
PAPER_IMBALANCE = 0.09


@dataclass(frozen=True)
class TrainingPlan:
    """What a run costs."""

    preset: str
    gpus: int
    gpu: str
    utilization: float
    parameters: int
    active_parameters: int
    tokens: int
    steps: int
    flops_per_token: float
    hours: float
    gpu_hours: float
    state_gigabytes: float
    """weights, gradients and moments, on each GPU"""
    activation_gigabytes: float
    """of a micro-batch, on each GPU"""
    fits: bool
    """into the GPU's memory, with a tenth to spare"""
    epochs: float | None
    """None for a corpus of unknown size"""
    imbalance: float
    expert_share: float
    """of all FLOPs, those in routed experts"""
    idle_share: float
    """of all GPU time, lost by waiting for the fullest GPU of each MoE layer, if experts are spread
    over all of them
    """

    @property
    def lost_gpu_hours(self) -> float:
        """On top of gpu_hours, which are without any waiting."""
        return self.gpu_hours * self.idle_share / (1 - self.idle_share)

    def to_dict(self) -> dict[str, object]:
        """As JSON prints it, with the assumptions in words."""
        return asdict(self) | {
            "lost_gpu_hours": self.lost_gpu_hours,
            "assumptions": assumptions(self),
        }


def plan(
    preset: str,
    *,
    gpus: int = 8,
    gpu: str = "H100",
    utilization: float = 0.3,
    imbalance: float = PAPER_IMBALANCE,
    **changes: Any,
) -> TrainingPlan:
    """Work out what training a preset costs.

    Args:
        preset: by name (`equipoise.preset`).
        gpus: how many.
        gpu: which, of the table.
        utilization: the share of its peak that is reached.
        imbalance: of the loads, mean |load - target| / target, for the time lost waiting.
        changes: settings of the preset, such as steps or parallel.

    Example:
        >>> round(equipoise.plan("deepseekmoe-1b", gpus=8).gpu_hours)
        39
    """
    if gpu not in GPUS:
        raise ValueError(f"no GPU {gpu!r} in the table: there are {', '.join(GPUS)}")
    if gpus < 1:
        raise ValueError(f"gpus must be at least 1, not {gpus}")
    if not 0 < utilization <= 1:
        raise ValueError(
            f"utilization is a share of the GPU's peak, between 0 and 1, not {utilization}"
        )
    check_imbalance(imbalance)
    config = training_preset(preset, **changes)
    micro_batch_size(config, gpus)
    counted, model = count_parameters(config.model), config.model
    tokens = config.steps * config.batch_size * model.sequence_length
    flops = flops_per_token(model)
    state = BYTES_PER_PARAMETER * counted.total / (gpus if config.parallel == "fsdp" else 1) / 1e9
    activations = activation_bytes(config, gpus) / 1e9
    gpu_hours = tokens * flops / (GPUS[gpu].teraflops * 1e12 * utilization) / 3600
    experts = training_workload(preset, config).expert_share if model.moe_layers else 0.0
    corpus = CORPORA.get(config.data)
    return TrainingPlan(
        preset=preset,
        gpus=gpus,
        gpu=gpu,
        utilization=utilization,
        parameters=counted.total,
        active_parameters=counted.active,
        tokens=tokens,
        steps=config.steps,
        flops_per_token=flops,
        hours=gpu_hours / gpus,
        gpu_hours=gpu_hours,
        state_gigabytes=state,
        activation_gigabytes=activations,
        fits=state + activations < 0.9 * GPUS[gpu].gigabytes,
        epochs=tokens / corpus if corpus else None,
        imbalance=imbalance,
        expert_share=experts,
        idle_share=expected_idle_share(imbalance, model.num_experts, gpus, experts),
    )


def training_workload(name: str, config: Config) -> Workload:
    """A training as the clock of a cluster sees it."""
    model = config.model
    return Workload(
        name=name,
        tokens=config.batch_size * model.sequence_length,
        moe_layers=model.moe_layers,
        num_experts=model.num_experts,
        top_k=model.top_k,
        hidden_size=model.hidden_size,
        expert_size=model.expert_size,
        flops_per_token=flops_per_token(model),
    )


def flops_per_token(model: ModelConfig) -> float:
    """Forward and backward, by the formula at the top of the file."""
    counted = count_parameters(model)
    multiplied = counted.active - counted.embedding
    return 6 * multiplied + 6 * model.layers * model.sequence_length * model.hidden_size


def activation_bytes(config: Config, gpus: int) -> float:
    """What a micro-batch keeps for backward under bfloat16 autocast: an estimate, from the tensors
    that each part saves.

    Attention and norms keep about 20 D numbers a token, a feed-forward of width F about D + 4 F for
    each of its rows. When activations are computed again, only the residual stream is kept, and one
    layer at a time is whole.
    """
    model = config.model
    size = micro_batch_size(config, gpus)
    D, rows = model.hidden_size, model.top_k + model.shared_experts
    layer = 2 * (20 * D + rows * (D + 4 * model.expert_size))
    kept = (4 * D * model.layers + layer) if config.recompute else layer * model.layers
    return size * model.sequence_length * kept


def expected_idle_share(
    imbalance: float, num_experts: int, gpus: int, expert_share: float
) -> float:
    """The share of all GPU time lost in waiting, by the formula at the top of the file."""
    longer = expert_share * expected_excess(imbalance, num_experts, gpus)
    return longer / (1 + longer)


def assumptions(made: TrainingPlan) -> list[str]:
    """What the figures rest on, in words."""
    gpu = GPUS[made.gpu]
    return [
        f"{made.gpu}: {gpu.teraflops:,.0f} TFLOP/s of dense bfloat16 at its peak, of which "
        f"{made.utilization:.0%} are reached; measure yours on a short run and pass --utilization",
        "AdamW in float32: 16 bytes a parameter; activations are estimated from what each layer "
        "keeps, within perhaps 30%",
        "evaluation, checkpoints and communication that is not hidden behind computation are not "
        "counted",
        "epochs: WikiText-103 has 119 million tokens of GPT-2; the docstrings some 6 million, "
        "depending on versions",
        f"idle time: experts spread evenly over all {made.gpus} GPUs, loads normal and independent "
        f"with a mean deviation of {made.imbalance:.0%}; the imbalance of single forwards counts, "
        "which is higher than that of a whole batch",
    ]
