"""DeepSeekMoE: the transformer that the paper trains, and the sizes it comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.model.config import MODELS, ModelConfig
from equipoise.model.count import Parameters, count_parameters
from equipoise.storage.lazy_names import lazy_names

if TYPE_CHECKING:
    from equipoise.model.transformer import DeepSeekMoE, ModelOutput

__all__ = ["MODELS", "DeepSeekMoE", "ModelConfig", "ModelOutput", "Parameters", "count_parameters"]

# sizes are numbers: what a training costs is known without torch
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DeepSeekMoE": "equipoise.model.transformer",
        "ModelOutput": "equipoise.model.transformer",
    },
)
