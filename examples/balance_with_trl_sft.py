"""Balance a model under TRL's SFTTrainer: `python balance_with_trl_sft.py MODEL`.

Packed rows are counted as what they are: all their tokens, and no padding.
"""

import sys

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

import equipoise

CPU = not torch.cuda.is_available()
texts = [f"{number} plus {number} is {2 * number}." for number in range(512)]
callback = equipoise.TrainerCallback("curvature")
trainer = SFTTrainer(
    model=sys.argv[1],  # a mixture of experts: a folder, or a name on the hub
    args=SFTConfig("out/sft", packing=True, max_length=64, use_cpu=CPU, max_steps=20),
    train_dataset=Dataset.from_dict({"text": texts}),
    callbacks=[callback],
)
trainer.train()
print(callback.balancing.report())
