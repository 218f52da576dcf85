"""Parameter counts: of modules on the meta device, against the same counts done by hand."""

import pytest

from equipoise.model import MODELS, count_parameters


def by_hand(c, experts):
    """experts: how many routed ones of each layer to count."""
    attention, norms = 4 * c.hidden_size**2, 2 * c.hidden_size
    swiglu = 3 * c.hidden_size * c.expert_size
    moe = (experts + c.shared_experts) * swiglu + c.num_experts * c.hidden_size
    dense = (c.top_k + c.shared_experts) * swiglu
    ends = 2 * c.vocab_size * c.hidden_size + c.hidden_size
    return ends + c.layers * (attention + norms) + c.dense_layers * dense + c.moe_layers * moe


@pytest.mark.parametrize("name", MODELS)
def test_counts_follow_from_the_sizes(name):
    config = MODELS[name]
    counted = count_parameters(config)
    assert counted.total == by_hand(config, config.num_experts)
    assert counted.active == by_hand(config, config.top_k)


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
