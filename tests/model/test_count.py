"""Parameter counts: the formulas against models that are built, on the meta device."""

import dataclasses

import pytest
import torch

import equipoise
from equipoise.layers import MoE
from equipoise.model import MODELS, DeepSeekMoE, count_parameters


def make_cpu_balancer(num_experts, top_k):
    """A balancer has few numbers but needs them: it checks its target loads."""
    with torch.device("cpu"):
        return equipoise.balancer("none", num_experts, top_k=top_k)


def count_built(config):
    """Total, active and embedding parameters of a model that is built but takes no memory."""
    with torch.device("meta"):
        model = DeepSeekMoE(config, balancer=make_cpu_balancer)
    total = sum(each.numel() for each in model.parameters())
    layers = [layer for layer in model.modules() if isinstance(layer, MoE)]
    routed = sum(each.numel() for layer in layers for each in layer.experts.parameters())
    idle = routed // config.num_experts * (config.num_experts - config.top_k)
    return total, total - idle, model.embedding.weight.numel()


CONFIGS = {
    **MODELS,
    "two dense layers": dataclasses.replace(MODELS["small"], dense_layers=2),
    "no shared experts": dataclasses.replace(MODELS["tiny"], shared_experts=0, top_k=3),
    "no experts": dataclasses.replace(MODELS["tiny"], moe_layers=0),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_formulas_count_what_is_built(name):
    assert count_parameters(CONFIGS[name]) == count_built(CONFIGS[name])


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("tiny", 1.26e6, 0.74e6),
        ("small", 31e6, 9e6),
        ("deepseekmoe-1b", 1.09e9, 0.27e9),
        ("deepseekmoe-3b", 2.6e9, 0.53e9),
    ],
)
def test_presets_have_their_size(name, total, active):
    counted = count_parameters(MODELS[name])
    assert counted.total == pytest.approx(total, rel=0.05)
    assert counted.active == pytest.approx(active, rel=0.05)


def test_the_papers_widths():
    one, three = MODELS["deepseekmoe-1b"], MODELS["deepseekmoe-3b"]
    assert (one.hidden_size, one.num_heads, one.layers, one.num_experts, one.top_k) == (
        1024,
        8,
        10,
        64,
        6,
    )
    assert (three.hidden_size, three.num_heads, three.layers, three.expert_size) == (
        1280,
        10,
        12,
        856,
    )
    assert one.dense_size == 4096
