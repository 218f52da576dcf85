"""Training the model: data, the loop, and what survives when a machine does not."""

from equipoise.training.config import Config, preset
from equipoise.training.loop import train
from equipoise.training.stopping import Stopped

__all__ = ["Config", "Stopped", "preset", "train"]
