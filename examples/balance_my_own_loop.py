"""Balance a Hugging Face model in a training loop of your own."""

from pathlib import Path

import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

import equipoise

torch.manual_seed(0)
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
model = Glm4MoeForCausalLM(config).train()  # yours: from_pretrained(...)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# or "deepseek", update_rate=1e-3, or any other method with a shift
balancing = equipoise.balance(model, "curvature")
print(balancing)  # what was found

for step in range(30):
    for _ in range(2):  # two micro-batches make one optimizer step
        starts = torch.randint(0, len(text) - 64, (8,))
        ids = torch.stack([text[start : start + 64] for start in starts])
        model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    balancing.step()  # after the optimizer's step, once
    optimizer.zero_grad()
    if step % 10 == 0:
        measured = balancing.metrics()
        print(
            f"step {step:2d}  imbalance {measured['imbalance']:.3f}  max violation "
            f"{measured['max_violation']:.3f}"
        )

print(balancing.report())
# the model as it was, with its biases moved: model.save_pretrained(...) keeps them
balancing.detach()
