"""A training that takes a second: for whatever does not depend on size."""

import json
from pathlib import Path

from equipoise.training import preset

MODEL = {
    "vocab_size": 300,
    "sequence_length": 16,
    "hidden_size": 16,
    "num_heads": 2,
    "moe_layers": 2,
    "num_experts": 8,
    "top_k": 2,
    "expert_size": 8,
}
TIMES = ("seconds", "tokens_per_second")


def small_config(texts, **changes):
    model = {**MODEL, **changes.pop("model", {})}
    first = {
        "data": str(texts),
        "steps": 8,
        "batch_size": 4,
        "warmup_steps": 2,
        "validation_sequences": 8,
    }
    return preset(
        "tiny", **{**first, "evaluate_every": 4, "checkpoint_every": 2, **changes}, model=model
    )


def rows(config, kind=None):
    """metrics.jsonl, without what depends on the clock."""
    lines = (Path(config.out) / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [without_times(row) for row in found if kind in (None, row["kind"])]


def without_times(row):
    return {name: value for name, value in row.items() if name not in TIMES}
