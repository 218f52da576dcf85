"""A whole MoE layer, forward and backward, beside transformers' DeepseekV3MoE and beside its matrix
multiplications alone.

    .venv/bin/python benchmarks/bench_moe.py                  some minutes
    .venv/bin/python benchmarks/bench_moe.py --threads 1      steadier where other jobs hold a core
    .venv/bin/python benchmarks/bench_moe.py --shared 1       a shared expert on both sides
    .venv/bin/python benchmarks/bench_moe.py --keep-memory    a malloc that never hands memory back

Everybody gets the same weights and the same tokens in float32, and computes a step: router,
experts, and the gradients of the tokens and of every weight, which start from None. Output and
gradients are compared before the race.

    equipoise         router matmul, sigmoid, equipoise.route, Experts with each implementation;
                      "auto" is loop here
    transformers      the layer with each of its own implementations of the experts
    multiplications   the three products of each expert forward and two for each of them backward,
                      on blocks of the very sizes of this batch, into memory that is there already:
                      the limit

Each contestant has a process of its own. Whether fresh tensors fault in their pages depends on what
malloc kept of earlier ones, and in one process a contestant would be faster or slower for its
neighbours' sake. --keep-memory takes page faults out altogether, which shows what is left for a
user of another malloc.

transformers' batched_mm copies an expert's weights for every choice, tens of gigabytes here. It
runs on fewer tokens, beside grouped_mm on as few.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.connection import Connection
from time import perf_counter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from timing import Neighbours, Timing, keep_memory, race
from torch import Tensor, nn
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

import equipoise
from equipoise.layers import Experts

Call = Callable[[], object]

TARGET = 1.2  # times as fast as the best of transformers
WIDTH = 110
OURS, LIMIT = "equipoise loop (auto)", "multiplications alone"
THEIR_IMPLEMENTATIONS = ("eager", "grouped_mm")
FEW_TOKENS = 256  # for batched_mm
OUR_IMPLEMENTATIONS = {OURS: "auto", "equipoise grouped": "grouped", "equipoise padded": "padded"}


class Shape(NamedTuple):
    D: int
    F: int
    E: int
    K: int
    T: int
    rounds: int

    def __str__(self) -> str:
        return f"D = {self.D}, F = {self.F}, E = {self.E}, K = {self.K}, T = {self.T:,}"


SHAPES = (Shape(256, 128, 32, 4, 4_096, rounds=40), Shape(512, 256, 64, 6, 8_192, rounds=15))


class Nothing(nn.Module):
    """No shared expert: DeepseekV3MoE always adds one, and a width of 0 would still cost a tensor
    of zeros.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.new_zeros(())


class OurMoE(nn.Module):
    """The counterpart of DeepseekV3MoE: router, experts and the very same shared expert."""

    def __init__(self, theirs: DeepseekV3MoE, implementation: str) -> None:
        super().__init__()
        E, D, width = theirs.experts.down_proj.shape
        self.top_k = theirs.gate.top_k
        self.scale = theirs.gate.routed_scaling_factor
        self.router = nn.Parameter(theirs.gate.weight.detach().clone())
        self.register_buffer("shift", theirs.gate.e_score_correction_bias.clone())
        self.experts = Experts(E, D, width, implementation=implementation)
        self.experts.load_state_dict(
            {"gate_up": theirs.experts.gate_up_proj, "down": theirs.experts.down_proj}
        )
        self.shared_experts = theirs.shared_experts

    def forward(self, hidden: Tensor) -> Tensor:
        flat = hidden.flatten(0, -2)
        scores = F.linear(flat, self.router).sigmoid()
        routing = equipoise.route(
            scores, self.top_k, choose_by=scores + self.shift, renormalize=True, scale=self.scale
        )
        return self.experts(flat, routing.experts, routing.gates).view_as(
            hidden
        ) + self.shared_experts(hidden)


def transformers_layer(shape: Shape, implementation: str, shared: int) -> DeepseekV3MoE:
    config = DeepseekV3Config(
        hidden_size=shape.D,
        moe_intermediate_size=shape.F,
        n_routed_experts=shape.E,
        num_experts_per_tok=shape.K,
        n_shared_experts=max(shared, 1),
        n_group=1,
        topk_group=1,
    )
    config._experts_implementation = implementation
    torch.manual_seed(0)
    layer = DeepseekV3MoE(config)
    if not shared:
        layer.shared_experts = Nothing()
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.02)
    return layer


def step(layer: nn.Module, hidden: Tensor, upstream: Tensor) -> Call:
    """A training step's share of this layer."""

    def call() -> Tensor:
        hidden.grad = None
        layer.zero_grad(set_to_none=True)
        output = layer(hidden)
        output.backward(upstream)
        return output.detach()

    return call


def multiplications(shape: Shape, counts: list[int]) -> Call:
    """What cannot be saved, and nothing else."""
    D, width, E, S = shape.D, shape.F, shape.E, sum(counts)
    gate_up, down = torch.randn(E, 2 * width, D), torch.randn(E, D, width)
    d_gate_up, d_down = torch.empty_like(gate_up), torch.empty_like(down)
    x, y, inner, act = (
        torch.randn(S, D),
        torch.randn(S, D),
        torch.randn(S, 2 * width),
        torch.randn(S, width),
    )
    blocks = list(zip(*(each.split(counts) for each in (x, y, inner, act)), strict=True))

    def call() -> None:
        for e, (x_n, y_n, inner_n, act_n) in enumerate(blocks):
            torch.mm(x_n, gate_up[e].T, out=inner_n)
            torch.mm(act_n, down[e].T, out=y_n)
            torch.mm(x_n, down[e], out=act_n)
            torch.mm(x_n.T, act_n, out=d_down[e])
            torch.mm(inner_n.T, x_n, out=d_gate_up[e])
            torch.mm(inner_n, gate_up[e], out=y_n)

    return call


def make(name: str, shape: Shape, shared: int) -> Call:
    """A contestant by its name in the table."""
    hidden, upstream = batch(shape)
    if name.startswith("transformers"):
        return step(transformers_layer(shape, name.split()[1], shared), hidden, upstream)
    theirs = transformers_layer(shape, "grouped_mm", shared)
    if name == LIMIT:
        experts = theirs.gate(hidden)[2]
        return multiplications(shape, torch.bincount(experts.flatten(), minlength=shape.E).tolist())
    ours = OurMoE(theirs, OUR_IMPLEMENTATIONS[name])
    check_alike(ours, theirs, hidden, upstream)
    return step(ours, hidden, upstream)


class Contestant:
    """A process that runs one step whenever it is told to."""

    def __init__(self, name: str, shape: Shape, options: argparse.Namespace) -> None:
        self.line, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(
            target=serve, args=(theirs, name, shape, options), daemon=True
        )
        self.process.start()
        self.line.recv()

    def __call__(self) -> None:
        self.line.send("step")
        self.line.recv()

    def leave(self) -> None:
        self.line.send(None)
        self.process.join()


def serve(line: Connection, name: str, shape: Shape, options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    if options.keep_memory:
        keep_memory()
    call = make(name, shape, options.shared)
    line.send("ready")
    while line.recv() is not None:
        call()
        line.send("done")


def run(
    shape: Shape, names: tuple[str, ...], rounds: int, options: argparse.Namespace
) -> dict[str, Timing]:
    contestants = {name: Contestant(name, shape, options) for name in names}
    timings = race(contestants, rounds)
    for contestant in contestants.values():
        contestant.leave()
    return timings


def batch(shape: Shape) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(1, shape.T, shape.D, requires_grad=True), torch.randn(1, shape.T, shape.D)


def check_alike(ours: OurMoE, theirs: DeepseekV3MoE, hidden: Tensor, upstream: Tensor) -> None:
    """Same output, same gradients: else there is nothing to compare."""
    results = []
    for layer, weights in (
        (ours, [ours.router, ours.experts.gate_up, ours.experts.down]),
        (theirs, [theirs.gate.weight, theirs.experts.gate_up_proj, theirs.experts.down_proj]),
    ):
        output = step(layer, hidden, upstream)()
        results.append([output, hidden.grad, *(weight.grad for weight in weights)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * other.abs().max().item())


def table(shape: Shape, timings: dict[str, Timing]) -> Table:
    limit = timings[LIMIT]
    table = Table(title=str(shape), title_justify="left")
    table.add_column("forward and backward", no_wrap=True)
    for heading in ("median ms", "x ours", "quartiles", "fastest ms", "share of multiplications"):
        table.add_column(heading, justify="right")
    for name, timing in timings.items():
        table.add_row(
            name,
            f"{timing.median_ms:.1f}",
            f"{timing.ratio.median:.2f}",
            f"{timing.ratio.lower:.2f} - {timing.ratio.upper:.2f}",
            f"{timing.fastest_ms:.1f}",
            f"{limit.against(timing).median:.0%}",
        )
    return table


class OtherNeighbours(Neighbours):
    """Neighbours other than our own contestants, all of whom must have left when the block ends."""

    def __enter__(self) -> OtherNeighbours:
        self._children, self._start = _children_seconds(), perf_counter()
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        ours = (
            (_children_seconds() - self._children)
            / (perf_counter() - self._start)
            / (os.cpu_count() or 1)
        )
        self.share = max(0.0, self.share - ours)


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def verdict(shape: Shape, timings: dict[str, Timing], neighbours: Neighbours) -> str:
    rivals = {name: timing for name, timing in timings.items() if name.startswith("transformers")}
    best = min(rivals, key=lambda name: rivals[name].median_ms)
    speedup = timings[best].ratio.median
    result = "[green]PASS[/]" if speedup >= TARGET else "[red]MISSED[/]"
    doubt = (
        f" (others took {neighbours.share:.0%} of the machine: not to be trusted)"
        if neighbours.busy
        else ""
    )
    return f"{shape}: at least {TARGET}x as fast as {best}: {speedup:.2f}x: {result}{doubt}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores"
    )
    parser.add_argument(
        "--shared", type=int, default=0, help="shared experts on both sides (default: none)"
    )
    parser.add_argument("--keep-memory", action="store_true", help="let malloc keep what is freed")
    parser.add_argument(
        "--rounds", type=float, default=1.0, help="times the usual number of rounds (default: 1)"
    )
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    console.print(
        f"torch {torch.__version__}, transformers {version('transformers')}, equipoise "
        f"{version('equipoise')}, "
        f"{options.threads} threads, float32, {options.shared} shared experts"
        + (", freed memory kept" if options.keep_memory else "")
    )
    names = (
        *OUR_IMPLEMENTATIONS,
        *(f"transformers {name}" for name in THEIR_IMPLEMENTATIONS),
        LIMIT,
    )
    lines = []
    for shape in SHAPES:
        with OtherNeighbours() as neighbours:
            timings = run(shape, names, max(2, round(options.rounds * shape.rounds)), options)
        console.print(table(shape, timings))
        few = run(
            shape._replace(T=FEW_TOKENS),
            ("transformers grouped_mm", "transformers batched_mm"),
            5,
            options,
        )
        ratio = few["transformers batched_mm"].ratio.median
        console.print(
            f"transformers batched_mm, on {FEW_TOKENS} tokens: {ratio:.1f}x the time of its "
            "grouped_mm"
        )
        lines.append(verdict(shape, timings, neighbours))
    for line in lines:
        console.print(line)


if __name__ == "__main__":
    main()
