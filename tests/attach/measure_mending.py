"""Measure how far collapsed experts are mended, by rule and seed: the table in
docs/results/collapsed-experts.md. Not a test; takes minutes.

    python -m tests.attach.measure_mending 80 none,deepseek:0.01,curvature 0,1,2

The models are those of examples/mend_collapsed_experts.py; the text is 400,000 words of the
docstring corpus, whole files, of which the 4,095 most frequent have a number of their own. A seed
sets the weights and the order of the batches.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter

import torch
import transformers

import equipoise
from equipoise.training.data.docstrings import documents

WORDS, VOCABULARY, LENGTH, WIDTH = 400_000, 4096, 64, 64
SIZES = {
    "hidden_size": WIDTH, "intermediate_size": 64, "moe_intermediate_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": 16, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "vocab_size": VOCABULARY,
}  # fmt: skip
FAMILIES = {
    "DeepseekV3": {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    },
    "Glm4Moe": {"head_dim": 16},
}


def text() -> list[dict[str, torch.Tensor]]:
    words: list[str] = []
    for _, document in documents():
        words += document.split()
        if len(words) > WORDS:
            break
    numbers = {
        word: place
        for place, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1), start=1)
    }
    ids = torch.tensor([numbers.get(word, 0) for word in words])
    return [
        {"input_ids": row, "labels": row}
        for row in ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    ]


def collapsed(family: str, rows: list[dict[str, torch.Tensor]], seed: int) -> torch.nn.Module:
    """All tokens have something in common, and every gate likes four experts for it."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**SIZES, **FAMILIES[family])
    model, seen = getattr(transformers, f"{family}ForCausalLM")(config), []
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(0.04 * torch.randn(WIDTH))
        for layer in model.model.layers[1:]:
            with layer.mlp.gate.register_forward_hook(
                lambda _, args, out: seen.append(args[0].flatten(0, -2).mean(0))
            ):
                model(torch.stack([row["input_ids"] for row in rows[:16]]))
            layer.mlp.gate.weight.mul_(5)[:4].add_(3 * seen[-1] / seen[-1].square().sum())
    return model


def measure(
    model: torch.nn.Module, rule: str, steps: int, seed: int, rows: list[dict[str, torch.Tensor]]
) -> str:
    name, _, rate = rule.partition(":")
    balancing = equipoise.balance(model, name, **({"update_rate": float(rate)} if rate else {}))
    settings = {
        "max_steps": steps,
        "per_device_train_batch_size": 16,
        "learning_rate": 5e-4,
        "logging_steps": 1,
    }
    settings |= {
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(folder, **settings)
        trainer = transformers.Trainer(
            model, arguments, train_dataset=rows, callbacks=[balancing.callback()]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    violation, loss = ([entry[name] for entry in history] for name in ("max_violation", "loss"))
    last = sum(violation[-5:]) / 5
    return (
        f"max violation {violation[0]:.3f} -> {last:.3f} ({violation[0] / last:.1f}x)  loss "
        f"{sum(loss[-5:]) / 5:.4f}"
    )


if __name__ == "__main__":
    steps, rules, seeds = int(sys.argv[1]), sys.argv[2].split(","), map(int, sys.argv[3].split(","))
    rows = text()
    for seed in seeds:
        for family in FAMILIES:
            for rule in rules:
                print(
                    family,
                    rule,
                    seed,
                    measure(collapsed(family, rows, seed), rule, steps, seed, rows),
                    flush=True,
                )
