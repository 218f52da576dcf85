"""Stands in for `equipoise train` where only the sweep is looked at: no torch, a tenth of a second.
The seed says what.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

wanted = Path(sys.argv[1])
folder, text = wanted.parent, wanted.read_text()
seed, rate = (
    int(re.search(r"^seed: (\d+)", text, re.M)[1]),
    float(re.search(r"^learning_rate: (\S+)", text, re.M)[1]),
)
with (folder / "begun").open("a") as file:
    file.write("x")
tries = (folder / "begun").stat().st_size


def stopped(*_):
    (folder / "stopped").touch()
    sys.exit(143)


signal.signal(signal.SIGTERM, stopped)
if seed == 13 and not (folder / "mended").exists():
    sys.exit("equipoise: the loss is not finite")
if (seed == 66 and tries == 1) or seed == 666:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60 if seed == 60 and tries == 1 else 0.1)
figures = {
    "validation_loss": 5 + rate,
    "imbalance": 0.5 - rate,
    "max_violation": 1.0,
    "train_loss": 5.0,
    "seconds": 0.1,
}
about = {"steps": 1, "seed": seed, "preset": "test", "balancer": "deepseek", "update_rate": None}
(folder / "result.part").write_text(json.dumps({**figures, **about}))
(folder / "result.part").rename(folder / "result.json")
