"""The curvature rule against its rivals on drifting streams, beside the best a rule can do that
knows only the last batch.

T=16,384 tokens, E=64, K=6, softmax of N(mu_k, 1) with mu ~ 0.7 N(0, 1) in a random walk; 150 steps;
mean imbalance over the last 50, over paired seeds. `--seeds 5` is what docs/log/curvature.md has.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

import equipoise
from equipoise.arena.replay import replay
from equipoise.arena.streams.drifting import DriftingLogits
from equipoise.arena.streams.stream import sampling_floor
from equipoise.balancing.shift.flips import FlipMove

T, E, K, STEPS, LAST = 16_384, 64, 6, 150, 50
STREAMS = {
    "drift 0": {},
    "drift 0.005": {"drift": 0.005},
    "drift 0.02": {"drift": 0.02},
    "drift 0.1": {"drift": 0.1},
    "swap at 100": {"swap_at": 100},
}
RIVALS = {"deepseek": {}, "quantile": {}, "quantile ema .5": {"ema": 0.5}, "curvature": {}}
LIMIT = "lag-one optimum"
FLOOR = sampling_floor(T, E, K)


def optimum(scores: Tensor, shift: Tensor) -> Tensor:
    """The batch's own best shift, to within ten tokens of balance: the mean is then about two, a
    tenth of a percent.
    """
    want = T * K // E
    for _ in range(60):
        routing = equipoise.route(scores, K, choose_by=scores + shift)
        if (routing.loads - want).abs().max() <= 10:
            break
        distance = FlipMove.distance(scores, routing, shift).T.sort(1, descending=True).values
        step = -(distance[:, want - 1] + distance[:, want]) / 2
        shift = shift + 0.7 * (step - step.mean())
    return shift


def lag_one(batches: list[Tensor], every: int = 5) -> Iterator[float]:
    """Imbalance of some of the last batches under the optimum of the batch before each."""
    shift = torch.zeros(E)
    for step, (before, now) in enumerate(pairwise(batches), 1):
        if step >= STEPS - LAST and step % every == 0:
            shift = optimum(before, shift)
            loads = equipoise.route(now, K, choose_by=now + shift).loads
            yield float(equipoise.metrics(loads)["imbalance"])


def steady(batches: list[Tensor], name: str, options: dict[str, float]) -> tuple[float, int | None]:
    """Mean imbalance of the last batches, and the first step within twice the floor."""
    balancer = equipoise.balancer(name.split()[0], E, top_k=K, **options)
    history = [measured["imbalance"] for measured in replay(batches, balancer)]
    near = next((step for step, value in enumerate(history) if value <= 2 * FLOOR), None)
    return statistics.mean(history[-LAST:]), near


def measure(seeds: int) -> dict[str, dict[str, list[tuple[float, int | None]]]]:
    table: dict[str, dict[str, list[tuple[float, int | None]]]] = {}
    for stream_name, settings in STREAMS.items():
        rows = table.setdefault(stream_name, {name: [] for name in (*RIVALS, LIMIT)})
        for seed in range(seeds):
            batches = list(
                DriftingLogits(T, E, STEPS, seed=seed, **settings).draw_batches()
            )  # 600 MB, but made once
            for name, options in RIVALS.items():
                rows[name].append(steady(batches, name, options))
            rows[LIMIT].append((statistics.mean(lag_one(batches)), None))
        show(stream_name, rows)
    return table


def mean(rows: list[tuple[float, int | None]]) -> float:
    return statistics.mean(value for value, _ in rows)


def show(stream_name: str, rows: dict[str, list[tuple[float, int | None]]]) -> None:
    print(
        f"\n{stream_name:<18}{'imbalance':>10}{'spread':>9}{'x floor':>9}{'x quantile':>12}  "
        "steps to 2x floor"
    )
    for name, values in rows.items():
        spread = statistics.stdev(value for value, _ in values) if len(values) > 1 else 0.0
        steps = " ".join("-" if near is None else str(near) for _, near in values)
        ratio = mean(values) / mean(rows["quantile"])
        print(
            f"  {name:<16}{mean(values):>10.4f}{spread:>9.4f}",
            f"{mean(values) / FLOOR:>8.3f}{ratio:>12.3f}  {steps}",
            flush=True,
        )


def verdicts(table: dict[str, dict[str, list[tuple[float, int | None]]]]) -> Iterator[str]:
    ratio = {
        stream: mean(rows["curvature"]) / mean(rows["quantile"]) for stream, rows in table.items()
    }
    over = mean(table["drift 0"]["curvature"]) / FLOOR
    slowest = max(
        (near if near is not None else STEPS) for _, near in table["drift 0"]["curvature"]
    )
    yield verdict("drift 0: at most 1.05x the floor", over, over <= 1.05)
    for stream in ("drift 0.005", "drift 0.02"):
        yield verdict(f"{stream}: at most 0.92x quantile", ratio[stream], ratio[stream] <= 0.92)
    yield verdict(
        "every stream: at most 1.02x quantile", max(ratio.values()), max(ratio.values()) <= 1.02
    )
    yield verdict("drift 0: within 2x of the floor by step 6", slowest, slowest <= 6)


def verdict(target: str, measured: float, met: bool) -> str:
    return f"{'PASS  ' if met else 'MISSED'} {target}: {measured:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    start = time.perf_counter()
    print(f"sampling floor {FLOOR:.4f}; {options.seeds} seeds")
    table = measure(options.seeds)
    print()
    print("\n".join(verdicts(table)))
    print(f"({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
