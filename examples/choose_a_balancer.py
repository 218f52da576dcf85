"""Record the scores of a Hugging Face model over text, compare balancers on them, and be advised.
Nothing is trained.
"""

import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

import equipoise


def small_model(folder: Path, text: Path) -> Path:
    """Stands for yours: any folder with config.json, a tokenizer and .safetensors files."""
    learnt = Tokenizer(models.WordLevel(unk_token="?"))
    learnt.pre_tokenizer = pre_tokenizers.Whitespace()
    learnt.train([str(text)], trainers.WordLevelTrainer(vocab_size=2000, special_tokens=["?"]))
    PreTrainedTokenizerFast(tokenizer_object=learnt, unk_token="?").save_pretrained(folder)
    config = Qwen3MoeConfig(
        hidden_size=64, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, num_experts=16, num_experts_per_tok=2, vocab_size=2000,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


with tempfile.TemporaryDirectory() as name:
    place = Path(name)
    text = place / "manual.txt"
    text.write_text("\n".join(topics.values()))  # any text
    model = small_model(place / "model", text)

    # equipoise record FOLDER --data manual.txt --batches 40 --batch-size 16 --sequence-length 64
    # --out scores
    trace = equipoise.record(
        model, place / "scores", data=str(text), batches=40, batch_size=16, sequence_length=64
    )
    print(f"recorded {len(trace.steps(0))} batches of {', '.join(trace.layers)}")

    # equipoise arena scores:model.layers.1.mlp --balancers none deepseek quantile curvature
    stream, names = f"{place / 'scores'}:{trace.layers[1]}", ["deepseek", "quantile", "curvature"]
    results = equipoise.run_arena(
        [stream], balancers=["none", *names], out=place / "cells", workers=1
    )
    for result in sorted(results.rows, key=lambda each: each.steady_imbalance):
        rate = "" if result.rate is None else f"{result.rate:g}"
        print(
            f"{result.balancer:10} {rate:6} imbalance {result.steady_imbalance:.3f}  affinity "
            f"{result.affinity_kept:.3f}"
        )

    # equipoise tune scores:model.layers.1.mlp; cells that are in the folder are not run again
    advice = equipoise.tune(stream, balancers=["none", *names], out=place / "cells", workers=1)
    print(advice.paragraph())
