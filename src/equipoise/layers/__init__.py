"""Layers of a sparse model: the router with its balancer, the experts, both as one MoE, and a
balancer that layers of one's own can have.
"""

from equipoise.layers.experts import Experts, reference_experts
from equipoise.layers.layer_balancer import LayerBalancer, LayerRouting
from equipoise.layers.model_steps import ModelSteps, drop, step
from equipoise.layers.moe import MoE, MoEOutput, SwiGLU
from equipoise.layers.router import Routed, Router, Sample

__all__ = [
    "Experts",
    "LayerBalancer",
    "LayerRouting",
    "MoE",
    "MoEOutput",
    "ModelSteps",
    "Routed",
    "Router",
    "Sample",
    "SwiGLU",
    "drop",
    "reference_experts",
    "step",
]
