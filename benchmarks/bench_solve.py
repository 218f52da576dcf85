"""The exact optimum: against OR-tools' min-cost flow, and how time grows with tokens. One loads
pass against torch's.

    python benchmarks/bench_solve.py [--quick]
    python benchmarks/bench_solve.py --many-experts     # only E = 256 and E = 896

Scores are softmax of Gaussian logits with a mean of 0.7 N(0, 1) for each expert. Every contestant's
memory is measured in a process of its own: peak resident size above what it was with the scores in
memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import equipoise
from benchmarks.timing import Neighbours, race
from equipoise.optimum import topk
from equipoise.selection.threads import run_in_parts

MEANS_SEED = 1000  # the experts' means are the same in every batch, as in a training
MANY_EXPERTS = ((262_144, 256, 8, 0.6), (65_536, 896, 16, 3.0))  # and seconds wanted
SIZES = (16_384, 65_536, 262_144, 1_048_576)


def make_scores(tokens: int, experts: int, seed: int = 0) -> np.ndarray:
    means = np.random.default_rng(MEANS_SEED).normal(size=experts).astype(np.float32) * np.float32(
        0.7
    )
    logits = (
        np.random.default_rng(seed).standard_normal((tokens, experts), dtype=np.float32) + means
    )
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def solve_by_flow(scores: np.ndarray, top_k: int) -> float:
    """OR-tools wants whole costs: 2^40 units of 1 are far finer than float32."""
    from ortools.graph.python import min_cost_flow

    T, E = scores.shape
    flow = min_cost_flow.SimpleMinCostFlow()
    tails = np.repeat(np.arange(T, dtype=np.int32), E)
    heads = np.tile(np.arange(T, T + E, dtype=np.int32), T)
    costs = -np.rint(scores.astype(np.float64) * 2.0**40).astype(np.int64).ravel()
    flow.add_arcs_with_capacity_and_unit_cost(tails, heads, np.ones(T * E, np.int64), costs)
    supplies = np.concatenate([np.full(T, top_k), np.full(E, -T * top_k // E)])
    flow.set_nodes_supplies(np.arange(T + E, dtype=np.int32), supplies)
    if flow.solve() != flow.OPTIMAL:
        raise RuntimeError("OR-tools found no optimum")
    return -flow.optimal_cost() / 2.0**40


def resident_bytes(which: str) -> int:
    """VmRSS, now, or VmHWM, the most since `forget_the_peak`."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(
        next(line for line in status.splitlines() if line.startswith(which)).split()[1]
    )


def forget_the_peak() -> int:
    """Making the scores took more memory than solving: begin anew, and say what is in use now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes("VmRSS")


def contestant(name: str, tokens: int, experts: int, top_k: int) -> None:
    """Run one in this process, and print seconds, value and memory beyond the scores."""
    scores = make_scores(tokens, experts)
    if name == "flow":
        before, start = forget_the_peak(), time.perf_counter()
        value = solve_by_flow(scores, top_k)
        seconds = [time.perf_counter() - start]
    else:
        equipoise.solve(
            make_scores(4096, experts), top_k
        )  # kernels from the cache, threads started
        shift = (
            equipoise.solve(make_scores(tokens, experts, seed=1), top_k).shift
            if name == "warm"
            else None
        )
        before = forget_the_peak()
        runs = [equipoise.solve(scores, top_k, shift=shift)]
    memory = resident_bytes("VmHWM") - before
    if name != "flow":
        runs += [equipoise.solve(scores, top_k, shift=shift) for _ in range(4)]
        seconds, value = [run.seconds for run in runs], runs[0].value
        runs[0].verify(scores)
    print(json.dumps({"seconds": statistics.median(seconds), "value": value, "memory": memory}))


def apart(name: str, tokens: int, experts: int, top_k: int) -> dict[str, float]:
    command = [
        sys.executable,
        __file__,
        "--contestant",
        name,
        str(tokens),
        str(experts),
        str(top_k),
    ]
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )


def verdict(ok: bool) -> str:
    return "PASS" if ok else "MISSED"


def against_the_flow(console: Console, tokens: int) -> None:
    E, K = 64, 6
    rows = {name: apart(name, tokens, E, K) for name in ("flow", "cold", "warm")}
    table = Table(
        "solver",
        "seconds",
        "x faster than the flow",
        "memory beyond the scores",
        "value - the flow's",
    )
    for name, label in (
        ("flow", "OR-tools min-cost flow"),
        ("cold", "equipoise"),
        ("warm", "equipoise, last batch's shift"),
    ):
        row = rows[name]
        table.add_row(
            label,
            f"{row['seconds']:.3f}",
            f"{rows['flow']['seconds'] / row['seconds']:.0f}",
            f"{row['memory'] / 1e6:,.0f} MB",
            f"{row['value'] - rows['flow']['value']:.2g}",
        )
    console.print(f"T = {tokens:,}, E = {E}, K = {K}")
    console.print(table)
    cold, warm = (rows["flow"]["seconds"] / rows[name]["seconds"] for name in ("cold", "warm"))
    console.print(f"{verdict(cold >= 20)}   at least 20x the flow: {cold:.0f}")
    console.print(f"{verdict(warm >= 40)}   from the last batch's shift at least 40x: {warm:.0f}")
    console.print(
        f"{verdict(rows['cold']['memory'] <= 5e8)}   at most 500 MB: "
        f"{rows['cold']['memory'] / 1e6:,.0f} MB"
    )


def growth(console: Console, sizes: tuple[int, ...]) -> None:
    table = Table("T", "E", "K", "seconds")
    times = {T: apart("cold", T, 64, 6)["seconds"] for T in sizes}
    for T, seconds in times.items():
        table.add_row(f"{T:,}", "64", "6", f"{seconds:.3f}")
    console.print(table)
    exponent = math.log(times[sizes[-1]] / times[sizes[0]]) / math.log(sizes[-1] / sizes[0])
    console.print(
        f"{verdict(exponent <= 1.1)}   time grows as T to the power of at most 1.1: {exponent:.2f}"
    )


def many_experts(console: Console) -> None:
    # always whole: with fewer tokens for as many experts chains are longer
    for T, E, K, wanted in MANY_EXPERTS:
        seconds = apart("cold", T, E, K)["seconds"]
        console.print(
            f"{verdict(seconds <= wanted)}   T = {T:,}, E = {E}, K = {K} in at most "
            f"{wanted} s: {seconds:.3f}"
        )


def one_pass(console: Console, tokens: int) -> None:
    E, K = 64, 6
    scores, shift = make_scores(tokens, E), np.zeros(E, np.float32)
    tensor = torch.from_numpy(scores)

    def ours() -> np.ndarray:
        return topk.top_k_loads(scores, shift, K)

    def counted_by_torch() -> torch.Tensor:
        return torch.bincount(tensor.topk(K, sorted=False).indices.flatten(), minlength=E)

    against = race({"top_k_loads": ours, "torch.topk + bincount": counted_by_torch}, rounds=20)
    # torch's threads spin for a while after they have worked, and would take the second core
    time.sleep(1)
    timings = race(
        {
            "top_k_loads": ours,
            "reading once, all threads": lambda: run_in_parts(
                tokens, lambda a, b: scores[a:b].sum()
            ),
            "reading once, one thread": scores.sum,
            "boundary (Newton's pass)": lambda: topk.boundary_under(scores, shift, K),
            "choice (experts written)": lambda: topk.choice_under(scores, shift, K),
        },
        rounds=20,
    )
    table = Table(f"one pass, T = {tokens:,}, E = {E}, K = {K}", "median ms", "x top_k_loads")
    for name, timing in {
        **timings,
        "torch.topk + bincount": against["torch.topk + bincount"],
    }.items():
        table.add_row(name, f"{timing.median_ms:.1f}", f"{timing.ratio.median:.2f}")
    console.print(table)
    faster = against["torch.topk + bincount"].ratio.median
    console.print(f"{verdict(faster >= 5)}   at least 5x torch.topk + bincount: {faster:.1f}")
    for name in ("reading once, one thread", "reading once, all threads"):
        readings = 1 / timings[name].ratio.median
        console.print(f"{verdict(readings <= 5)}   at most 5x {name}: {readings:.1f}")


def start(console: Console) -> None:
    """A second process: how long from the start of Python to the first solution, and to the
    solver's first line.
    """
    program = (
        "import time; begin = time.perf_counter()\n"
        "import numpy as np, equipoise\n"
        "lines = []\n"
        "scores = np.random.default_rng(0).random((10000, 64), dtype=np.float32)\n"
        "equipoise.solve(scores, 6, progress=lambda line: lines.append(time.perf_counter() - "
        "begin))\n"
        "print(lines[0], time.perf_counter() - begin)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        for _ in range(4)
    ]
    first, done = (
        statistics.median(float(run.stdout.split()[i]) for run in runs[1:]) for i in (0, 1)
    )
    console.print(
        f"{verdict(first < 1)}   a process with kernels in the cache begins to solve within 1 s: "
        f"{first:.2f} s"
    )
    console.print(f"       and has solved 10,000 tokens after {done:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the tokens")
    parser.add_argument("--many-experts", action="store_true", help="only E = 256 and 896")
    parser.add_argument("--contestant", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        name, *shape = options.contestant
        contestant(name, *map(int, shape))
        return
    console = Console()
    small = 16 if options.quick else 1
    if options.many_experts:
        many_experts(console)
        return
    with (
        Neighbours() as neighbours
    ):  # not around the rest: the contestants' own processes would be others to it
        one_pass(console, 262_144 // small)
    console.print(f"others took {100 * neighbours.share:.0f}% of the processors")
    against_the_flow(console, 262_144 // small)
    growth(console, tuple(size // small for size in SIZES))
    many_experts(console)
    start(console)


if __name__ == "__main__":
    main()
