"""What balancing costs a training step of a Hugging Face model: at most 3% with deepseek, 64
experts.

A step is forward, backward, AdamW and (balanced) `balancing.step()`, on tiny models of two
families: DeepseekV3, which has a bias, and Qwen3-MoE, which has none and has its top-K shifted
instead. All contestants train twins of the same model on the same tokens, in rounds, so that a busy
second slows them alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version

import torch
import transformers
from rich.console import Console
from rich.table import Table
from timing import Neighbours, Timing, race
from torch import Tensor, nn

import equipoise

TARGET = 0.03
EXPERTS, TOP_K, ROWS, LENGTH, VOCABULARY = 64, 6, 8, 128, 512
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": TOP_K,
    "vocab_size": VOCABULARY,
}
RULES = ("deepseek", "quantile", "curvature")


def deepseek() -> nn.Module:
    latent = {
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
    }
    groups = {
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 1,
        "n_routed_experts": EXPERTS,
    }
    return transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(**SIZES, **latent, **groups)
    )


def qwen() -> nn.Module:
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SIZES, head_dim=32, num_experts=EXPERTS)
    )


FAMILIES: dict[str, Callable[[], nn.Module]] = {"DeepseekV3": deepseek, "Qwen3Moe": qwen}


def trainer(make: Callable[[], nn.Module], rule: str | None, ids: Tensor) -> Callable[[], None]:
    """One training step of a fresh twin."""
    torch.manual_seed(0)
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    balancing = None if rule is None else equipoise.balance(model, rule)

    def step() -> None:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        if balancing is not None:
            balancing.step()
        optimizer.zero_grad()

    return step


def measure(make: Callable[[], nn.Module], rounds: int) -> dict[str, Timing]:
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    contestants = {
        "not balanced": trainer(make, None, ids),
        "not balanced, again": trainer(make, None, ids),
    }
    contestants |= {rule: trainer(make, rule, ids) for rule in RULES}
    return race(contestants, rounds)


def table(family: str, timings: dict[str, Timing]) -> Table:
    shown = Table(
        title=f"{family}: {ROWS * LENGTH} tokens, {EXPERTS} experts, top-{TOP_K}, "
        f"{torch.get_num_threads()} threads"
    )
    for heading in ("a training step", "median ms", "overhead", "quartiles", "fastest ms"):
        shown.add_column(heading, justify="left" if heading == "a training step" else "right")
    for name, timing in timings.items():
        lower, upper = timing.ratio.lower - 1, timing.ratio.upper - 1
        shown.add_row(
            name,
            f"{timing.median_ms:.1f}",
            f"{timing.ratio.median - 1:+.1%}",
            f"{lower:+.1%} {upper:+.1%}",
            f"{timing.fastest_ms:.1f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(highlight=False, soft_wrap=True, width=100)
    console.print(
        f"torch {torch.__version__}, transformers {version('transformers')}, equipoise "
        f"{equipoise.__version__}"
    )
    for family, make in FAMILIES.items():
        with Neighbours() as neighbours:
            timings = measure(make, options.rounds)
        console.print(table(family, timings))
        cost = timings["deepseek"].ratio.median - 1
        doubt = (
            f" (others took {neighbours.share:.0%} of the machine: not to be trusted)"
            if neighbours.busy
            else ""
        )
        result = "[green]PASS[/]" if cost <= TARGET else "[red]MISSED[/]"
        console.print(
            f"{family}: deepseek costs at most {TARGET:.0%} of a step: {cost:+.1%}: {result}{doubt}"
        )


if __name__ == "__main__":
    main()
