"""Balance a model under TRL's DPOTrainer: `python balance_with_trl_dpo.py MODEL`.

The model is balanced, the reference is not: it is another model, or with LoRA this one without its
adapter, which then routes as it did when balancing began.
"""

import sys

import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

import equipoise

CPU = not torch.cuda.is_available()
numbers = range(256)
pairs = {
    "prompt": [f"{number} plus {number} is" for number in numbers],
    "chosen": [f" {2 * number}." for number in numbers],
    "rejected": [f" {2 * number + 1}." for number in numbers],
}
callback = equipoise.TrainerCallback("curvature")
trainer = DPOTrainer(
    model=sys.argv[1],  # a mixture of experts: a folder, or a name on the hub
    args=DPOConfig("out/dpo", use_cpu=CPU, max_steps=10),
    train_dataset=Dataset.from_dict(pairs),
    callbacks=[callback],
)
trainer.train()
print(callback.balancing.report())
