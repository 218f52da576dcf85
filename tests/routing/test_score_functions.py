"""Score functions: the values they promise, in float32."""

import math

import pytest
import torch

from equipoise import score_function

NAMES = ["softmax", "sigmoid", "sqrt_softplus"]
LOGITS = [-3.0, 0.0, 0.5, 4.0]
EXPECTED = {
    "softmax": [math.exp(z) / sum(map(math.exp, LOGITS)) for z in LOGITS],
    "sigmoid": [1 / (1 + math.exp(-z)) for z in LOGITS],
    "sqrt_softplus": [math.sqrt(math.log1p(math.exp(z))) for z in LOGITS],
}


@pytest.mark.parametrize("name", NAMES)
def test_values_follow_formula(name):
    scores = score_function(name)(torch.tensor([[LOGITS], [LOGITS]]))
    torch.testing.assert_close(scores, torch.tensor(EXPECTED[name]).expand(2, 1, 4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_are_float32(name, dtype):
    logits = torch.linspace(-5, 5, 40).view(4, 10).to(dtype)
    scores = score_function(name)(logits)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, score_function(name)(logits.float()))


@pytest.mark.parametrize(
    ("name", "most"), [("softmax", 1.0), ("sigmoid", 1.0), ("sqrt_softplus", 100.0)]
)
def test_large_logits_stay_finite(name, most):
    scores = score_function(name)(torch.tensor([-1e4, 0.0, 1e4]))
    assert scores[2] == most
    assert 0 <= scores[0] < 1e-18


def test_hyphens_are_read():
    assert score_function("sqrt-softplus") is score_function("sqrt_softplus")


def test_unknown_name_gets_near_match():
    with pytest.raises(
        ValueError,
        match=r"no score function 'sofmax' \(did you mean 'softmax'\?\): there are softmax",
    ):
        score_function("sofmax")
    with pytest.raises(
        ValueError, match="no score function 'relu': there are softmax, sigmoid, sqrt_softplus"
    ):
        score_function("relu")


def test_no_slope_is_nan():
    logits = torch.tensor([-120.0, -1e4, 1.0], requires_grad=True)
    score_function("sqrt_softplus")(logits).sum().backward()
    assert torch.isfinite(logits.grad).all()
