"""Balance a model under Lightning. The callback's state is part of Lightning's checkpoints."""

from pathlib import Path

import lightning.pytorch as lightning
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


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Glm4MoeForCausalLM(config)  # yours: from_pretrained(...)

    def training_step(self, ids, place):
        return self.model(input_ids=ids, labels=ids).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


rows = text[:8192].view(-1, 32)
module = Model()
balancing = equipoise.balance(module, "quantile")
quiet = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}
trainer = lightning.Trainer(
    max_steps=20, accelerator="cpu", callbacks=[balancing.lightning_callback()], **quiet
)
trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=8))
print(balancing.report())
