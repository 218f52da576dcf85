"""Does a change leave every number as it was, to the last digit? For changes that move code and
mean to change nothing.

    python benchmarks/same_numbers.py record before.json         in a clone of the old commit
    python benchmarks/same_numbers.py compare before.json        in the changed one

Trainings under six balancers (every row of metrics.jsonl), thirty exact optima, all verdicts, an
arena and two balanced Hugging Face models, by public names only. Both runs must be on one machine:
another processor rounds otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

import equipoise
from equipoise.cli import main as command

SIZE = {
    "vocab_size": 300, "sequence_length": 16, "hidden_size": 16, "num_heads": 2, "moe_layers": 2,
    "num_experts": 8,
    "top_k": 2, "expert_size": 8,
}  # fmt: skip
TRAININGS: dict[str, dict[str, Any]] = {
    "deepseek": {"balancer": "deepseek"},
    "inverse": {"balancer": "inverse", "micro_batch_size": 2},
    "smebu": {"balancer": "smebu"},
    "quantile": {"balancer": "quantile", "recompute": True},
    "curvature": {"balancer": "curvature", "look_ahead": 16},
    "aux": {"balancer": "aux", "update_rate": 0.1, "balancer_options": {"scope": "sequence"}},
}
CLOCK = ("seconds", "tokens_per_second")


def trainings(folder: Path) -> dict[str, Any]:
    text = folder / "text.txt"
    text.write_text("\n\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")
    settings = {
        "data": str(text),
        "steps": 12,
        "batch_size": 4,
        "validation_sequences": 16,
        "histogram_steps": (1, 12),
    }
    found: dict[str, Any] = {}
    for name, changes in TRAININGS.items():
        out = folder / name
        equipoise.train(equipoise.preset("tiny", out=str(out), model=SIZE, **settings, **changes))
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        found[name] = [
            {key: value for key, value in row.items() if key not in CLOCK} for row in rows
        ]
    found["verdicts on a trace"] = [
        verdict._asdict()
        for verdict in equipoise.verify(equipoise.Trace.open(folder / "deepseek" / "trace"))
    ]
    return found


def optima(folder: Path) -> list[Any]:
    found = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        tokens, experts = int(rng.integers(20, 400)), int(rng.integers(4, 24))
        scores = rng.dirichlet(np.ones(experts), tokens).astype(np.float32)
        optimum = equipoise.solve(scores, top_k=2)
        given = equipoise.evaluate(scores, 2, shift=np.zeros(experts), optimum=optimum)
        found.append(
            [optimum.value, optimum.shift.tolist(), given.imbalance, given.given_up, given.dual_gap]
        )
    return found


def verdicts(folder: Path) -> list[Any]:
    return [verdict._asdict() for verdict in equipoise.verify()]


def arena(folder: Path) -> Any:
    asked = (
        "arena drift thin-e8 --steps 24 --tokens 512 --json --balancers deepseek smebu "
        "adagrad quantile curvature bip"
    )
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        if command(asked.split()):
            raise RuntimeError(f"equipoise {asked} failed")
    return _without_clock(json.loads(output.getvalue()))


def models(folder: Path) -> dict[str, str]:
    from transformers import (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    common = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
              "num_key_value_heads": 2, "moe_intermediate_size": 16, "intermediate_size": 32,
              "num_experts_per_tok": 2}  # fmt: skip
    latent = {
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    }
    deepseek = DeepseekV3Config(
        n_routed_experts=8, n_group=1, topk_group=1, first_k_dense_replace=1, **latent, **common
    )
    made = {
        "DeepseekV3, deepseek": (DeepseekV3ForCausalLM, deepseek, "deepseek"),
        "Qwen3Moe, curvature": (
            Qwen3MoeForCausalLM,
            Qwen3MoeConfig(num_experts=8, **common),
            "curvature",
        ),
    }
    return {name: _balanced(*each) for name, each in made.items()}


def _balanced(kind: Callable[..., Any], config: Any, balancer: str) -> str:
    torch.manual_seed(0)
    model = kind(config).train()
    balancing = equipoise.balance(model, balancer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        tokens = torch.randint(0, 64, (4, 16))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        balancing.step()
    state = model.state_dict()
    return hashlib.sha256(
        b"".join(state[name].numpy().tobytes() for name in sorted(state))
    ).hexdigest()


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clock(each) for key, each in value.items() if "second" not in key}
    return [_without_clock(each) for each in value] if isinstance(value, list) else value


PARTS: dict[str, Callable[[Path], Any]] = {
    "trainings": trainings, "optima": optima, "verdicts": verdicts, "arena": arena,
    "models": models,
}  # fmt: skip


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    found = {}
    for name, part in PARTS.items():
        print(name, file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = json.loads(json.dumps(part(Path(folder))))
    return found


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(key for key in after if key not in before)]
        return [
            line
            for key in keys
            for line in differences(before.get(key), after.get(key), f"{place}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [
            line for n, (one, other) in pairs for line in differences(one, other, f"{place}/{n}")
        ]
    same = before == after or (before != before and after != after)
    return [] if same else [f"{place}: {before!r} before, {after!r} now"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    found = measure()
    if options.what == "record":
        options.file.write_text(json.dumps(found), encoding="utf-8")
        return 0
    lines = differences(json.loads(options.file.read_text(encoding="utf-8")), found)
    print("\n".join(lines[:40]) or "the same, to the last digit")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
