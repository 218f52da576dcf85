"""Training the model: data, the loop, and what survives when a machine does not.

config       everything a training follows from; presets
settings     which settings differ between two configs, and the error for it
data/        texts, tokenizers, the corpus, batches
trainer      one step, one evaluation
lanes        parts of a forward side by side on the CPU
ranks        several processes: DDP, FSDP2
loop         train(): the whole run in its folder
observers/   what is written down while it runs
checkpoint   what a training needs to continue
open_run     the model of a run's folder, to look at
record_run   the scores of such a model over text, as a trace
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.storage.lazy_names import lazy_names

if TYPE_CHECKING:
    from equipoise.training.config import Config, preset
    from equipoise.training.loop import train
    from equipoise.training.stopping import Stopped

__all__ = ["Config", "Stopped", "preset", "train"]

# a config is read, and its flags are shown, without torch; a training is not run without it
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Config": "equipoise.training.config",
        "Stopped": "equipoise.training.stopping",
        "preset": "equipoise.training.config",
        "train": "equipoise.training.loop",
    },
)
