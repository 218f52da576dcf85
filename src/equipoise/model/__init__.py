"""DeepSeekMoE: the transformer that the paper trains, and the sizes it comes in."""

from equipoise.model.config import MODELS, ModelConfig
from equipoise.model.count import Parameters, count_parameters
from equipoise.model.transformer import DeepSeekMoE, ModelOutput

__all__ = ["MODELS", "DeepSeekMoE", "ModelConfig", "ModelOutput", "Parameters", "count_parameters"]
