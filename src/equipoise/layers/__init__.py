"""Layers of a sparse model: the router with its balancer, the experts, and both as one MoE."""

from equipoise.layers.experts import Experts, reference_experts
from equipoise.layers.moe import MoE, MoEOutput, SwiGLU
from equipoise.layers.router import Routed, Router, Sample

__all__ = [
    "Experts",
    "MoE",
    "MoEOutput",
    "Routed",
    "Router",
    "Sample",
    "SwiGLU",
    "reference_experts",
]
