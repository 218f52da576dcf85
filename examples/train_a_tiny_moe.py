"""Train a small DeepSeekMoE twice, with its experts balanced and not, on text that every Python
brings along.
"""

import os
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import equipoise

folder = Path(tempfile.mkdtemp())
os.environ.setdefault("EQUIPOISE_CACHE", str(folder / "cache"))
(folder / "python_manual.txt").write_text("\n".join(topics.values()))

for balancer in ("none", "curvature"):
    config = equipoise.preset(
        "tiny",
        balancer=balancer,
        data=str(folder / "python_manual.txt"),
        steps=40,
        evaluate_every=0,
        validation_sequences=16,
        out=str(folder / balancer),
        model={
            "vocab_size": 512,
            "sequence_length": 64,
            "hidden_size": 32,
            "moe_layers": 2,
            "expert_size": 32,
        },
    )
    result = equipoise.train(config)
    print(
        f"{balancer:<10} validation loss {result['validation_loss']:.3f}  imbalance "
        f"{result['imbalance']:.3f}"
    )
