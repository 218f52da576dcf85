"""Balance a Hugging Face model under transformers' Trainer. Checkpoints hold the balancers' state,
and resuming finds it.
"""

import tempfile
from pathlib import Path

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Trainer, TrainingArguments

import equipoise

torch.manual_seed(0)
words = Path(torch.__file__).read_text().split()  # any text
vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
text = torch.tensor([vocabulary[word] for word in words])

config = DeepseekV3Config(
    hidden_size=32,
    intermediate_size=64,
    moe_intermediate_size=16,
    num_hidden_layers=3,
    first_k_dense_replace=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=8,
    n_routed_experts=16,
    n_group=1,
    topk_group=1,
    num_experts_per_tok=2,
    vocab_size=len(vocabulary),
)
model = DeepseekV3ForCausalLM(config)  # yours: from_pretrained(...)
rows = [{"input_ids": part, "labels": part} for part in text[:8192].view(-1, 32)]

balancing = equipoise.balance(model, "quantile")
with tempfile.TemporaryDirectory() as folder:
    settings = {
        "per_device_train_batch_size": 8,
        "max_steps": 20,
        "logging_steps": 5,
        "save_steps": 10,
        "use_cpu": True,
    }
    arguments = TrainingArguments(folder, **settings, report_to=[], disable_tqdm=True)
    Trainer(model, arguments, train_dataset=rows, callbacks=[balancing.callback()]).train()

print(balancing.report())
