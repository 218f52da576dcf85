"""Balance a model under TRL's GRPOTrainer: `python balance_with_trl_grpo.py MODEL`.

Tokens count when they are trained on, and not when they are generated or scored.
"""

import sys

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import equipoise

CPU = not torch.cuda.is_available()


def many_letters(completions, **_):
    return [float(len(set(completion))) for completion in completions]


callback = equipoise.TrainerCallback("curvature")
trainer = GRPOTrainer(
    model=sys.argv[1],  # a mixture of experts: a folder, or a name on the hub
    reward_funcs=many_letters,
    args=GRPOConfig("out/grpo", max_completion_length=16, use_cpu=CPU, max_steps=5),
    train_dataset=Dataset.from_dict({"prompt": [f"Count to {n}:" for n in range(64)]}),
    callbacks=[callback],
)
trainer.train()
print(callback.balancing.report())
