"""What the theory costs: the loop's fast twin, the expected dual, and keeping a trace.

.venv/bin/python benchmarks/bench_theorems.py             a few minutes
.venv/bin/python benchmarks/bench_theorems.py --quick     fewer steps and draws

loop       T=16,384, E=64, K=6, u=1e-4, 10,000 steps of the fast twin, against the numpy screen. The
           screen is timed over a few steps spread over the same path: each of its steps costs the
           same. Same path, so same shifts.
expected   selection_probability + boundary_weight at E=256, K=8, beta densities, every expert its
           own, to 1e-10; and at error 1e-4 against Monte Carlo of the selection probabilities
           *alone*: the time a measured error says is needed for 1e-4 (errors fall with the root of
           the draws). Boundary weights by Monte Carlo would take longer still.
trace      appending one step of one layer with a sample of 64 tokens
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

import numpy as np
from timing import Neighbours

from equipoise.expected.dual import Expected
from equipoise.expected.laws import Beta
from equipoise.optimum.loop import (
    FixedScores,
    LoopPath,
    choose_top_k,
    deepseek_rule,
    iterate,
    iterate_fast,
)
from equipoise.trace import TraceWriter

T, E, K, RATE = 16_384, 64, 6, 1e-4


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """The fastest of some calls."""
    taken = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        taken.append(perf_counter() - start)
    return min(taken)


def gates(skew: float) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(T, E)) + skew * rng.normal(size=E)
    yield "sigmoid", 1 / (1 + np.exp(-logits))
    yield "softmax", np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def loop(steps: int) -> Iterator[str]:
    for name, scores in gates(skew=0.7):
        problem = FixedScores(scores, K)
        iterate_fast(problem, deepseek_rule(RATE), 1)  # compiled
        start = perf_counter()
        path = iterate_fast(problem, deepseek_rule(RATE), steps)
        fast = perf_counter() - start
        places = range(0, steps, steps // 8)
        slow = [seconds(partial(_screen, problem, path, at)) for at in places]
        ratio = float(np.median(slow)) * steps / fast
        yield verdict(
            f"loop, {name}, {steps} steps in {fast:.1f} s: at least 20x the numpy screen",
            ratio,
            ratio >= 20,
        )


def _screen(problem: FixedScores, path: LoopPath, at: int) -> None:
    """One step of the screen from somewhere on the path, which it must take alike."""
    one = iterate(problem, deepseek_rule(RATE), 0, shift=path.shifts[at])
    assert (one.loads[0] == path.loads[at]).all()


def expected(draws: int) -> Iterator[str]:
    rng = np.random.default_rng(0)
    law, shift = (
        Beta(rng.uniform(4, 8, 256), rng.uniform(4, 8, 256)),
        0.05 * rng.normal(size=256),
    )
    reference = Expected(law, 8, tolerance=1e-14).at(shift)
    times = {}
    for tolerance in (1e-10, 1e-4):
        point = Expected(law, 8, tolerance=tolerance).at(shift)
        error = max(
            np.abs(point.selection_probability - reference.selection_probability).max(),
            np.abs(point.boundary_weight - reference.boundary_weight).max(),
        )
        times[tolerance] = seconds(partial(_both, law, shift, tolerance), repeats=5)
        text = f"expected, E=256, K=8, error {error:.0e} for {tolerance:.0e}"
        if tolerance == 1e-10:
            met = error <= tolerance and times[tolerance] < 1
            yield verdict(f"{text}: under 1 s", times[tolerance], met, "s")
        else:
            yield f"       {text}: {times[tolerance]:.3f} s"
    share, taken = monte_carlo(law, shift, draws)
    error = float(np.sqrt(np.mean((share - reference.selection_probability) ** 2)))
    needed = taken * (error / 1e-4) ** 2
    ratio = needed / times[1e-4]
    yield verdict(
        f"Monte Carlo needs {needed:.0f} s for 1e-4 (rms): at least 100x ours", ratio, ratio >= 100
    )


def _both(law: Beta, shift: np.ndarray, tolerance: float) -> None:
    point = Expected(law, 8, tolerance=tolerance).at(shift)
    _ = point.selection_probability, point.boundary_weight


def monte_carlo(law: Beta, shift: np.ndarray, draws: int) -> tuple[np.ndarray, float]:
    """Selection probabilities from draws, and the time."""
    rng, counts, start = np.random.default_rng(1), np.zeros(256), perf_counter()
    for _ in range(draws // 4096):
        counts += choose_top_k(law.sample(rng, 4096) + shift, 8).sum(0)
    return counts / (draws // 4096 * 4096), perf_counter() - start


def trace(records: int) -> Iterator[str]:
    rng = np.random.default_rng(0)
    fields = {
        "shift": np.zeros(E, np.float32),
        "shift_after": np.zeros(E, np.float32),
        "loads": np.arange(E),
    }
    fields |= {"step_size": np.ones(E), "scores": rng.random((64, E), np.float32)}
    with (
        tempfile.TemporaryDirectory() as folder,
        TraceWriter(f"{folder}/trace", top_k=K, layers=1) as writer,
    ):
        start = perf_counter()
        for step in range(records):
            writer.append(step, 0, **fields)
        each = (perf_counter() - start) / records
    yield f"       trace: {each * 1e3:.2f} ms for a step of a layer, folding included"


def verdict(target: str, measured: float, met: bool, unit: str = "x") -> str:
    return f"{'PASS  ' if met else 'MISSED'} {target}: {measured:.3g} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps and draws")
    options = parser.parse_args()
    with Neighbours() as neighbours:
        for line in loop(1000 if options.quick else 10_000):
            print(line, flush=True)
        for line in expected(40_960 if options.quick else 409_600):
            print(line, flush=True)
        for line in trace(1024):
            print(line, flush=True)
    print(f"(others took {neighbours.share:.0%} of the processors)")


if __name__ == "__main__":
    main()
