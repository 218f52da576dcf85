"""How well a replay predicts a training: train `tiny` under two rules, and replay each on the
other's scores.

python benchmarks/arena_replay.py --steps 300
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

import equipoise
from equipoise.arena.cells import Cell, run_cells
from equipoise.arena.reference import StreamReference
from equipoise.arena.streams import catalogue

RULES = {"deepseek": 1e-3, "quantile": 1.0, "curvature": None}


def trained(folder: Path, rule: str, steps: int) -> np.ndarray:
    """(layers, steps): the imbalance in the training."""
    rate = RULES[rule] if rule == "deepseek" else None
    config = equipoise.preset(
        "tiny", balancer=rule, update_rate=rate, steps=steps, out=str(folder / rule),
        trace_scores=10**6,
        evaluate_every=0, checkpoint_every=0, validation_sequences=8,
    )  # fmt: skip
    equipoise.train(config)
    rows = map(json.loads, (folder / rule / "metrics.jsonl").read_text().splitlines())
    return np.array([row["layers"]["imbalance"] for row in rows if row["kind"] == "train"]).T


def replayed(folder: Path, rule: str) -> np.ndarray:
    return np.array(
        [
            next(
                run_cells([Cell(stream, rule, RULES[rule], 1)], StreamReference(1.0, {"0": 1.0}))
            ).imbalance
            for stream in catalogue.find_streams(str(folder))
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rules", nargs="+", default=["deepseek", "quantile"], choices=list(RULES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder, early, late = (
            Path(place),
            slice(0, options.steps // 5),
            slice(-options.steps // 4, None),
        )
        real = {rule: trained(folder, rule, options.steps) for rule in options.rules}
        print(
            f"tiny, {options.steps} steps: mean imbalance of the first fifth and of the last "
            "quarter"
        )
        print(
            "| rule | in its training | replayed on the scores of | first fifth | last quarter "
            "|\n|---|---|---|---|---|"
        )
        for rule in options.rules:
            for scores in options.rules:
                there = replayed(folder / scores, rule)
                print(
                    f"| {rule} | {real[rule][:, early].mean():.4f}, "
                    f"{real[rule][:, late].mean():.4f} | {scores} | "
                    f"{there[:, early].mean():.4f} "
                    f"({there[:, early].mean() / real[rule][:, early].mean() - 1:+.1%}) | "
                    f"{there[:, late].mean():.4f} "
                    f"({there[:, late].mean() / real[rule][:, late].mean() - 1:+.1%}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
