"""The rules in real trainings, where the router reacts: is curvature with look-ahead the most even?
(`make bench-arena`)

Two models, `tiny` and one of 4M parameters, each without warm-up of the learning rate and with 50
steps of it. Every rule runs at all its rates on seed 0 and at the best of them on the other seeds:
the seed that chose the rate counts for the rivals. Early is the mean imbalance of the first 60
steps, late that of the last quarter, over all layers. Runs that are in the folder already are not
repeated.

    python benchmarks/arena_training.py --out results/trainings        half an hour or more
    python benchmarks/arena_training.py --out results/trainings --models tiny --seeds 1
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import track

import equipoise
from equipoise.experiments.schemes import LOOK_AHEAD

FOUR_MILLION = {
    "hidden_size": 128, "num_heads": 4, "moe_layers": 3, "num_experts": 32, "top_k": 4,
    "expert_size": 64,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"steps": 200},
    "4M": {"steps": 200, "model": FOUR_MILLION, "learning_rate": 2e-3},
}
WARMUPS = (0, 50)
EARLY = 60
RATES: dict[str, tuple[float | None, ...]] = {
    "deepseek": (1e-3, 1e-2),
    "smebu": (1e-2,),
    "quantile": (1.0, 0.5),
    "curvature": (None,),
    "curvature, look-ahead": (None,),
}
OURS = "curvature, look-ahead"


class Cell(NamedTuple):
    """One training."""

    model: str
    warmup: int
    rule: str
    rate: float | None
    seed: int


class Measured(NamedTuple):
    early: float
    late: float
    loss: float


def train(cell: Cell, out: Path) -> Measured:
    name = cell.rule.split(",")[0]
    folder = out / "-".join(str(part).replace(", ", "-") for part in cell)
    if not (folder / "result.json").exists():
        settings: dict[str, Any] = {
            **MODELS[cell.model],
            "balancer": name,
            **_rate(cell),
            "look_ahead": LOOK_AHEAD if cell.rule == OURS else 0,
            "warmup_steps": cell.warmup,
            "seed": cell.seed,
        }
        quiet = {"trace_every": 0, "evaluate_every": 0, "checkpoint_every": 0}
        equipoise.train(equipoise.preset("tiny", out=str(folder), resume=True, **settings, **quiet))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    imbalance = np.array(
        [np.mean(row["layers"]["imbalance"]) for row in rows if row["kind"] == "train"]
    )
    loss = json.loads((folder / "result.json").read_text())["validation_loss"]
    return Measured(imbalance[:EARLY].mean(), imbalance[-len(imbalance) // 4 :].mean(), loss)


def _rate(cell: Cell) -> dict[str, Any]:
    """quantile's rate is the share of the way it goes, as in the arena."""
    if cell.rule == "quantile" and cell.rate is not None:
        return {"balancer_options": {"ema": 1 - cell.rate}}
    return {"update_rate": cell.rate}


def run(model: str, warmup: int, seeds: int, out: Path) -> dict[str, list[Measured]]:
    """Per rule, at the rate with the smallest early + late imbalance on seed 0, a measurement for
    every seed.
    """
    cells = [Cell(model, warmup, rule, rate, 0) for rule, rates in RATES.items() for rate in rates]
    first = {
        cell: train(cell, out)
        for cell in track(cells, f"{model}, warm-up {warmup}, seed 0", transient=True)
    }
    best = [
        min((c for c in cells if c.rule == rule), key=lambda c: first[c].early + first[c].late)
        for rule in RATES
    ]
    results = {_label(cell): [first[cell]] for cell in best}
    for cell in track(best, f"{model}, warm-up {warmup}, other seeds", transient=True):
        results[_label(cell)] += [train(cell._replace(seed=seed), out) for seed in range(1, seeds)]
    return results


def _label(cell: Cell) -> str:
    return cell.rule if cell.rate is None else f"{cell.rule} {cell.rate:g}"


def rows(model: str, warmup: int, results: dict[str, list[Measured]]) -> list[str]:
    """Mean and standard deviation over seeds; the lowest of each column in bold."""
    means = {rule: np.mean(seen, axis=0) for rule, seen in results.items()}
    lowest = np.min(list(means.values()), axis=0)
    lines = []
    for rule, seen in results.items():
        spread = np.std(seen, axis=0, ddof=1) if len(seen) > 1 else np.full(3, np.nan)
        shown = [f"{mean:.4f} ± {about:.4f}" for mean, about in zip(means[rule], spread)]
        marked = [
            f"**{text}**" if mean == low else text
            for text, mean, low in zip(shown, means[rule], lowest)
        ]
        lines.append(f"| {model}, {warmup} | {rule} | " + " | ".join(marked) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/trainings"))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.seeds} seeds; early: the first {EARLY} steps, late: the last quarter")
    print(
        "| model, warm-up | rule | early imbalance | late imbalance | validation loss "
        "|\n|---|---|---|---|---|"
    )
    for model in options.models:
        for warmup in WARMUPS:
            print(
                "\n".join(rows(model, warmup, run(model, warmup, options.seeds, options.out))),
                flush=True,
            )


if __name__ == "__main__":
    main()
