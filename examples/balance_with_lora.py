"""Balance a model that is fine-tuned with LoRA. An adapter does not hold the biases: a sidecar file
does.
"""

import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

import equipoise

words = Path(torch.__file__).read_text().split()  # any text
vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
text = torch.tensor([vocabulary[word] for word in words])

config = Glm4MoeConfig(
    hidden_size=32,
    intermediate_size=64,
    moe_intermediate_size=16,
    num_hidden_layers=3,
    first_k_dense_replace=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=8,
    n_routed_experts=16,
    num_experts_per_tok=2,
    vocab_size=len(vocabulary),
)


def base():
    torch.manual_seed(0)
    return Glm4MoeForCausalLM(config)  # yours: from_pretrained(...)


model = get_peft_model(base(), LoraConfig(r=4, target_modules=["q_proj", "o_proj"])).train()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
# steps after every step of the optimizer
balancing = equipoise.balance(model, "deepseek", update_rate=2e-3, optimizer=optimizer)

for _ in range(20):
    starts = torch.randint(0, len(text) - 64, (8,))
    ids = torch.stack([text[start : start + 64] for start in starts])
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(balancing.report())

with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)  # the adapter, and equipoise.safetensors beside it
    again = PeftModel.from_pretrained(base(), folder)
    equipoise.balance(again).load(folder).detach()  # its biases are those of the training again
