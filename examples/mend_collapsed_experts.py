"""Fine-tune models whose experts have collapsed, without and with balancing: Trainer alone never
moves a bias.
"""

import sys
import tempfile
from pathlib import Path

import torch
import transformers

import equipoise

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 12
# real text: code and its documentation
words = Path(torch.nn.functional.__file__).read_text().split()
vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
text = torch.tensor([vocabulary[word] for word in words])
rows = [{"input_ids": part, "labels": part} for part in text[: len(text) // 64 * 64].view(-1, 64)]

sizes = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
}
sizes |= {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
}
sizes |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "vocab_size": len(vocabulary)}
latent = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def collapsed(family, options):
    """A random model in which all tokens have something in common, and every gate likes four
    experts for it.
    """
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes, **options)
    model, seen = getattr(transformers, f"{family}ForCausalLM")(config), []
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(0.04 * torch.randn(sizes["hidden_size"]))
        for layer in model.model.layers[1:]:
            with layer.mlp.gate.register_forward_hook(
                lambda _, args, out: seen.append(args[0].flatten(0, -2).mean(0))
            ):
                model(torch.stack([row["input_ids"] for row in rows[:16]]))
            layer.mlp.gate.weight.mul_(5)[:4].add_(3 * seen[-1] / seen[-1].square().sum())
    return model


def train(model, balancer):
    balancing = equipoise.balance(model, balancer)
    before = torch.stack([router.applied_shift for router in balancing.routers])
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 16,
        "learning_rate": 5e-4,
        "logging_steps": 1,
    }
    settings |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(folder, **settings)
        trainer = transformers.Trainer(
            model, arguments, train_dataset=rows, callbacks=[balancing.callback()]
        )
        trainer.train()
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    violation, loss = ([entry[name] for entry in history] for name in ("max_violation", "loss"))
    moved = float(
        (torch.stack([router.applied_shift for router in balancing.routers]) - before).abs().max()
    )
    return moved, violation[0], sum(violation[-5:]) / 5, sum(loss[-5:]) / 5


for family, options in (("DeepseekV3", latent), ("Glm4Moe", {"head_dim": 16})):
    for balancer in ("none", "curvature"):
        moved, first, last, loss = train(collapsed(family, options), balancer)
        print(
            f"{family:10} {balancer:9} bias moved {moved:.3f}  max violation {first:.2f} -> "
            f"{last:.2f}  loss {loss:.3f}"
        )
