"""The whole model against transformers' GLM-4-MoE, the same architecture without its extras: same
weights, same answers.
"""

import dataclasses

import pytest
import torch

from equipoise.model import DeepSeekMoE
from tests.model.test_transformer import SMALLEST, tokens
from tests.model.twin import our_state, theirs

CONFIG = dataclasses.replace(SMALLEST, score="sigmoid", renormalize=True)


@pytest.fixture(scope="module")
def pair():
    other = theirs(CONFIG)
    with torch.no_grad():
        for n in range(CONFIG.dense_layers, CONFIG.layers):
            torch.nn.init.normal_(other.model.layers[n].mlp.gate.weight, std=0.5)
    ours = DeepSeekMoE(CONFIG)
    missing, unexpected = ours.load_state_dict(our_state(other), strict=False)
    assert not unexpected
    assert all("balancer" in name for name in missing)
    return ours, other


def test_the_same_logits(pair):
    ours, other = pair
    x = tokens(3, 16)
    torch.testing.assert_close(
        ours(x).logits, other(x, use_cache=False).logits, rtol=1e-4, atol=1e-5
    )


def test_the_same_loss_and_gradients(pair):
    ours, other = pair
    x = tokens(3, 16)
    mine = ours(x[:, :-1], x[:, 1:]).loss
    their = other(x, labels=x, use_cache=False).loss
    torch.testing.assert_close(mine, their, rtol=1e-5, atol=1e-6)
    mine.backward()
    their.backward()
    torch.testing.assert_close(
        ours.embedding.weight.grad, other.model.embed_tokens.weight.grad, rtol=1e-3, atol=1e-6
    )
    torch.testing.assert_close(
        ours.blocks[1].feed_forward.experts.down.grad,
        other.model.layers[1].mlp.experts.down_proj.grad,
        rtol=1e-3,
        atol=1e-6,
    )
