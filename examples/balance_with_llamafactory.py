"""Balance a model under LLaMA-Factory: `python balance_with_llamafactory.py CONFIG.yaml`.

Its command line takes no callbacks, its function does: this takes the place of
`llamafactory-cli train CONFIG.yaml`, for every stage (pt, sft, dpo ...) but those on Megatron.
"""

import sys

from llamafactory.train.tuner import run_exp

import equipoise

callback = equipoise.TrainerCallback("curvature")
# it reads the YAML file from the command line
run_exp(callbacks=[callback])
print(callback.balancing.report(), file=sys.stderr)
