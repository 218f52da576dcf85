"""The README.md of an exported model: what it is, how even its loads are, and how to use it."""

from __future__ import annotations

import json
from pathlib import Path

from equipoise.balancing import method_spec
from equipoise.integrations.huggingface.same_logits import LogitsComparison
from equipoise.model import count_parameters
from equipoise.results.run import METRICS_FILE, EvaluationMetrics, read_metrics
from equipoise.training.open_run import OpenedRun

_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- mixture-of-experts
- equipoise
---

# {title}

A DeepSeekMoE trained with equipoise, in the architecture `{model_type}` of transformers. Its
{what_shift} in the tensors `e_score_correction_bias`, in float32: do not cast them.

{sizes}

## Balance

{balance}

{shifts}

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{title}")
tokenizer = AutoTokenizer.from_pretrained("{title}")
words = tokenizer("The", return_tensors="pt")
print(tokenizer.decode(model.generate(**words, max_new_tokens=20)[0]))
```

To train on with even loads, from the biases as they are:

```python
import equipoise

balancing = equipoise.balance(model, "{balancer}")
...; optimizer.step(); balancing.step()
```

## What was checked

When it was written, this folder was loaded again and compared with the model that was trained:
{compared}.
{warning}
"""
_NORM_WARNING = """
Gates are not divided by their sum: `moe_norm_min` is 1, which transformers obeys. An engine that
does not read `moe_norm_min` divides all the same, and then computes another model.
"""


def model_card(
    run: OpenedRun, title: str, twin_settings: object, compared: LogitsComparison, settled: bool
) -> str:
    """The text of README.md; `twin_settings` is the transformers config."""
    return _CARD.format(
        title=title,
        model_type=getattr(twin_settings, "model_type", "?"),
        what_shift=_what_shift(run, settled),
        sizes=_size_lines(run),
        balance=_balance_lines(run),
        shifts=_shift_table(run),
        balancer=_balancer_to_continue(run.config.balancer),
        compared=compared,
        warning=_NORM_WARNING if getattr(twin_settings, "moe_norm_min", 0) == 1.0 else "",
    )


def _balancer_to_continue(trained: str) -> str:
    """The training's own, where it moves a shift: equipoise.balance takes no other."""
    moves = method_spec(trained).kind == "shift" and trained != "none"
    return trained if moves else "deepseek"


def _what_shift(run: OpenedRun, settled: bool) -> str:
    return f"{'settled shifts' if settled else 'shifts'}, after step {run.step}, stand"


def _size_lines(run: OpenedRun) -> str:
    model, counted = run.config.model, count_parameters(run.config.model)
    return (
        f"{counted.total:,} parameters, {counted.active:,} of them active for a token; "
        f"{model.layers} layers,\n{model.dense_layers} of them dense; {model.num_experts} experts "
        f"with top-{model.top_k} by {model.score}, {model.shared_experts} shared; "
        f"sequences of {model.sequence_length} tokens.\n"
        f"Trained for {run.step} of {run.config.steps} steps on {run.corpus.name} with "
        f"`{run.config.balancer}`{_option_words(run)}."
    )


def _option_words(run: OpenedRun) -> str:
    options = dict(run.config.balancer_options)
    if run.config.update_rate is not None:
        options["update_rate"] = run.config.update_rate
    return f" ({json.dumps(options)})" if options else ""


def _balance_lines(run: OpenedRun) -> str:
    """The last evaluation before the checkpoint."""
    row = _last_evaluation(run.folder, run.step)
    if row is None:
        return "The training was not evaluated yet."
    error, floor = row.get("imbalance_error"), row.get("floor")
    return (
        f"Validation after step {row['step']}, with the shifts of that step: loss "
        f"{row['loss']:.4f}, imbalance (mean |load - target| / target)\n{row['imbalance']:.4f}"
        f"{'' if error is None else f' ± {error:.4f}'}"
        f"{'' if floor is None else f', of which chance alone would leave {floor:.4f}'}; fullest "
        f"expert {1 + row['max_violation']:.2f} times its target\n(means over layers)."
    )


def _shift_table(run: OpenedRun) -> str:
    """A row for each MoE layer."""
    row = _last_evaluation(run.folder, run.step)
    lines = ["| layer | imbalance | shift, least | greatest |", "|---|---|---|---|"]
    for place, (name, layer) in enumerate(run.model.moe_layers.items()):
        shift = layer.router.balancer.shift_or_zeros
        level = "" if row is None else f"{row['layers']['imbalance'][place]:.4f}"
        lines.append(f"| {name} | {level} | {float(shift.min()):.4f} | {float(shift.max()):.4f} |")
    return "\n".join(lines)


def _last_evaluation(folder: Path, step: int) -> EvaluationMetrics | None:
    rows = [
        row
        for row in read_metrics(folder / METRICS_FILE)
        if row["kind"] == "validation" and row["step"] <= step
    ]
    return rows[-1] if rows else None
