"""What balanced routing costs: beside a bare top-K, beside transformers' router and beside
megatron-core's.

    .venv/bin/python benchmarks/bench_routing.py                    about a minute
    .venv/bin/python benchmarks/bench_routing.py --rounds 200       steadier

Everything runs on the same logits in one process, and what is compared does the same work:

    bare              topk of scores that were shifted beforehand, gather of the gates, int64
                      scatter_add of the counts
    a balancer        route (which adjusts) + tally + update, from scores; penalty(), which needs
                      gradients, is left out
    from hidden       the same after projection and sigmoid, gates renormalised and scaled: what
                      transformers' router does, which does not count or update. Its projection is
                      part of its forward, so it is made small (8 numbers per token) and done on
                      both sides.
    from logits       the same after sigmoid, gates renormalised, tallies reduced over a process
                      group of one rank: what megatron-core does, which returns its gates and its
                      choice as dense (T, E) tensors.

    look-ahead        scoring 2,048 kept inputs of 1,024 numbers again and tallying them: what
                      Router.fresh_tally does

Memory is malloc's business, as in anybody's training. With --keep-memory the process keeps what it
frees, which is steadier and kinder to whoever makes the most temporaries (megatron-core's dense
tensors, not us).

Solvers of the batch itself (base, sinkhorn, bip, expert_choice) run in another class and are left
out.

Before the race each pair is checked to choose the same experts with the same gates.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from timing import Neighbours, Timing, keep_memory, race
from torch import Tensor

import equipoise
from equipoise.arena.demo import CAUSAL
from equipoise.balancing import Dual
from equipoise.layers.router import Router

Call = Callable[[], object]
Answer = Callable[
    [], tuple[Tensor, Tensor]
]  # gives gates and experts (T, K), or both as dense (T, E)

# of bare's time, at 64 and at 256 experts
MOST = {
    "deepseek": {64: 0.5, 256: 0.6},
    "curvature": {64: 0.8, 256: 0.8},
    "quantile": {64: 1.0, 256: 1.0},
}
LOOK_AHEAD = "look-ahead, deepseek"
UPDATE_RATE = 1e-3
SCALE = 2.5  # DeepSeek-V3's routed_scaling_factor
HIDDEN = 8
WIDTH = 110  # of the table, also where output goes to a file
# of tokens; the rest are ties in float32, which top-K and top-(K+1) may break differently
LEAST_AGREEMENT = 0.999

TRANSFORMERS, FROM_HIDDEN = (
    "transformers DeepseekV3TopkRouter",
    "deepseek, from the same hidden states",
)
MEGATRON, FROM_LOGITS = "megatron-core routing and bias update", "deepseek, from logits (sigmoid)"


class Shape(NamedTuple):
    T: int
    E: int
    K: int

    def __str__(self) -> str:
        return f"T = {self.T:,}, E = {self.E}, K = {self.K}"


SHAPES = (Shape(16_384, 64, 6), Shape(16_384, 256, 8))


class Batch(NamedTuple):
    """One batch, at every stage a contestant may start from."""

    shape: Shape
    hidden: Tensor
    weight: Tensor
    logits: Tensor
    scores: Tensor
    shift: Tensor


def make_batch(shape: Shape, score_name: str) -> Batch:
    """Random tokens, experts of very different popularity, and a shift half way to evening them
    out.
    """
    torch.manual_seed(0)
    hidden = torch.randn(shape.T, HIDDEN)
    hidden[:, 0] = 1.0  # so that the first column of the weight says how popular an expert is
    weight = torch.randn(shape.E, HIDDEN) / HIDDEN**0.5
    weight[:, 0] = torch.randn(shape.E)
    logits = F.linear(hidden, weight)
    scores = equipoise.score_function(score_name)(logits)
    popularity = scores.mean(0)
    return Batch(shape, hidden, weight, logits, scores, (popularity.mean() - popularity) / 2)


def bare(batch: Batch) -> Call:
    """What every router must do at least."""
    scores, (_, E, K) = batch.scores, batch.shape
    shifted = scores + batch.shift

    def call() -> tuple[Tensor, Tensor, Tensor]:
        experts = torch.topk(shifted, K).indices
        gates = scores.gather(1, experts)
        chosen = experts.flatten()
        loads = torch.zeros(E, dtype=torch.int64).scatter_add_(0, chosen, torch.ones_like(chosen))
        return experts, gates, loads

    return call


def ours(name: str, batch: Batch) -> Call:
    """All that a training step asks of this balancer, from scores."""
    _, E, K = batch.shape
    balancer = rewind(equipoise.balancer(name, E, top_k=K), batch)

    def call() -> object:
        routing = balancer.route(batch.scores)
        balancer.update(balancer.tally(batch.scores, routing))
        rewind(balancer, batch)
        return routing

    return call


def look_ahead(batch: Batch) -> Call:
    """The extra work of looking ahead; the forward's own routing and the update come on top."""
    router = Router(
        1024, equipoise.balancer("deepseek", batch.shape.E, top_k=batch.shape.K), look_ahead=2048
    )
    sample = router(torch.randn(batch.shape.T, 1024)).sample
    return lambda: router.fresh_tally(sample)


def ours_from_hidden(batch: Batch) -> Answer:
    """The counterpart of transformers' router, and the counting and updating that it leaves out."""
    (_, E, K), sigmoid = batch.shape, equipoise.score_function("sigmoid")
    balancer = rewind(equipoise.balancer("deepseek", E, top_k=K, update_rate=UPDATE_RATE), batch)

    def call() -> tuple[Tensor, Tensor]:
        scores = sigmoid(F.linear(batch.hidden, batch.weight))
        routing = balancer.route(scores, renormalize=True, scale=SCALE)
        balancer.update(balancer.tally(scores, routing))
        rewind(balancer, batch)
        return routing.gates, routing.experts

    return call


def transformers_router(batch: Batch) -> Answer:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        n_routed_experts=batch.shape.E,
        num_experts_per_tok=batch.shape.K,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=SCALE,
    )
    router = DeepseekV3TopkRouter(config)
    router.weight.copy_(batch.weight)
    router.e_score_correction_bias.copy_(batch.shift)

    def call() -> tuple[Tensor, Tensor]:
        _, gates, experts = router(batch.hidden)
        return gates, experts

    return call


def ours_from_logits(batch: Batch) -> Answer:
    """The counterpart of megatron-core: reduce() is in it since their update has its all_reduce
    inside.
    """
    (_, E, K), sigmoid = batch.shape, equipoise.score_function("sigmoid")
    balancer = rewind(equipoise.balancer("deepseek", E, top_k=K, update_rate=UPDATE_RATE), batch)

    def call() -> tuple[Tensor, Tensor]:
        scores = sigmoid(batch.logits)
        routing = balancer.route(scores, renormalize=True)
        balancer.update(equipoise.reduce(balancer.tally(scores, routing)))
        rewind(balancer, batch)
        return routing.gates, routing.experts

    return call


def megatron_router(batch: Batch) -> Answer:
    """As TopKRouter and finalize_model_grads call them: counts add up in a float32 buffer, then the
    bias moves.
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that Transformer Engine and Apex, for GPUs only, are not installed
        from megatron.core.transformer.moe.moe_utils import (
            get_updated_expert_bias,
            topk_routing_with_score_function,
        )
    start_one_rank()
    bias, counts = batch.shift.clone(), torch.zeros(batch.shape.E)

    def call() -> tuple[Tensor, Tensor]:
        gates, chosen = topk_routing_with_score_function(
            batch.logits, batch.shape.K, score_function="sigmoid", expert_bias=bias
        )
        counts.add_(chosen.sum(dim=0))
        bias.copy_(get_updated_expert_bias(counts, bias, UPDATE_RATE))
        counts.zero_()
        bias.copy_(batch.shift)  # as rewind() does
        return gates, chosen

    return call


def start_one_rank() -> None:
    """megatron-core's update asks its global state for a process group, and sums over it."""
    from megatron.core import parallel_state

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()


def rewind(balancer: equipoise.Balancer, batch: Batch) -> equipoise.Balancer:
    """Set the shift, where there is one, to the batch's, so that everybody ranks the same numbers
    in every round.

    torch.topk is a seventh faster on balanced scores (64 experts), which would favour whoever
    balances in a few rounds. It is part of the timed call, at its end, where it takes a few
    microseconds.
    """
    if isinstance(balancer, Dual):
        balancer.shift.copy_(batch.shift)
    return balancer


RIVALS: dict[tuple[str, str], tuple[Callable[[Batch], Answer], Callable[[Batch], Answer]]] = {
    # (theirs, ours): how to make them. The package is the first word of the name.
    (TRANSFORMERS, FROM_HIDDEN): (transformers_router, ours_from_hidden),
    (MEGATRON, FROM_LOGITS): (megatron_router, ours_from_logits),
}


def field(batch: Batch, console: Console) -> dict[str, Call]:
    """Everybody who can start, bare first and deepseek second."""
    names = sorted(CAUSAL, key=lambda name: name != "deepseek")
    contestants: dict[str, Call] = {
        "bare": bare(batch),
        **{name: ours(name, batch) for name in names},
    }
    contestants[LOOK_AHEAD] = look_ahead(batch)
    for (theirs, counterpart), (make_theirs, make_ours) in RIVALS.items():
        try:
            rival = make_theirs(batch)
        except ImportError as error:
            console.print(
                f"{theirs.split()[0]} cannot be imported and is left out: {error}", style="yellow"
            )
            continue
        equal = make_ours(batch)
        contestants |= {counterpart: equal, theirs: rival}
        share = agreement(equal(), rival(), batch.shape)
        console.print(
            f"{theirs.split()[0]} and equipoise give {share:.2%} of tokens the same experts and "
            "gates."
        )
        if share < LEAST_AGREEMENT:
            raise AssertionError(
                f"{theirs} and {counterpart} do not compute the same thing: nothing to compare"
            )
    return contestants


def agreement(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], shape: Shape) -> float:
    """The share of tokens for which two routers give the same gates to the same experts."""
    left, right = (_dense(*answer, shape) for answer in (one, other))
    return torch.isclose(left, right, rtol=1e-5, atol=1e-7).all(1).double().mean().item()


def _dense(gates: Tensor, experts: Tensor, shape: Shape) -> Tensor:
    return (
        gates
        if experts.dtype == torch.bool
        else torch.zeros(shape.T, shape.E).scatter_(1, experts, gates)
    )


def table(shape: Shape, timings: dict[str, Timing]) -> Table:
    table = Table(title=str(shape), title_justify="left")
    table.add_column("contestant", no_wrap=True)
    for heading in ("median ms", "x bare", "quartiles", "fastest ms", "x bare"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, timing in timings.items():
        table.add_row(
            name,
            f"{timing.median_ms:.2f}",
            f"{timing.ratio.median:.2f}",
            f"{timing.ratio.lower:.2f} - {timing.ratio.upper:.2f}",
            f"{timing.fastest_ms:.2f}",
            f"{timing.fastest_ms / timings['bare'].fastest_ms:.2f}",
        )
    return table


def verdicts(shape: Shape, timings: dict[str, Timing]) -> list[str]:
    """A line per target: what it is, what was measured, whether it is met."""
    results: list[tuple[str, str, bool | None]] = []
    for name, limits in MOST.items():
        most, ratio = limits[shape.E], timings[name].ratio.median
        results.append((f"{name} at most {most}x bare", f"{ratio:.3f}x", ratio <= most))
    for theirs, counterpart in RIVALS:
        target = f"deepseek faster than {theirs.split()[0]}"
        if theirs not in timings:
            results.append((target, "not measured", None))
            continue
        ratio = timings[counterpart].against(timings[theirs]).median
        results.append((target, f"{ratio:.3f} of its time", ratio < 1))
    return [f"{shape}: {target}: {measured}: {_verdict(met)}" for target, measured, met in results]


def _verdict(met: bool | None) -> str:
    return {True: "[green]PASS[/]", False: "[red]MISSED[/]", None: "[yellow]UNKNOWN[/]"}[met]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=50, help="how often each contestant runs (default: 50)"
    )
    parser.add_argument(
        "--scores",
        choices=("sigmoid", "softmax"),
        default="sigmoid",
        help="for the rows from scores",
    )
    parser.add_argument(
        "--keep-memory", action="store_true", help="do not give freed memory back to the system"
    )
    arguments = parser.parse_args()
    kept = arguments.keep_memory and keep_memory()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    console.print(
        f"torch {torch.__version__}, equipoise {version('equipoise')}, {torch.get_num_threads()} "
        "threads, "
        f"{arguments.rounds} rounds, {arguments.scores} scores, no gradients, "
        f"freed memory {'kept' if kept else 'given back as malloc pleases'}"
    )
    lines = []
    for shape in SHAPES:
        with torch.no_grad(), Neighbours() as neighbours:
            timings = race(field(make_batch(shape, arguments.scores), console), arguments.rounds)
        console.print(table(shape, timings))
        console.print(f"Others took {neighbours.share:.0%} of the processors meanwhile.")
        doubt = " (on a busy machine: not to be trusted)" if neighbours.busy else ""
        lines += [line + doubt for line in verdicts(shape, timings)]
    console.print(
        "from hidden states: projection, sigmoid, gates renormalised and scaled on both sides; "
        "only ours counts and updates."
        "\nfrom logits: sigmoid, gates renormalised, counts, a sum over one rank and the update "
        "on both sides."
    )
    for line in lines:
        console.print(line)


if __name__ == "__main__":
    main()
