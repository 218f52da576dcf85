"""What route refuses, and what it says."""

import pytest
import torch

from equipoise import route

SCORES = torch.rand(3, 8)


@pytest.mark.parametrize("top_k", [-1, 0, 9])
def test_impossible_top_k_is_refused(top_k):
    with pytest.raises(
        ValueError, match=f"top_k = {top_k} is impossible with 8 experts: choose 1 to 8"
    ):
        route(SCORES, top_k)


@pytest.mark.parametrize(
    ("scores", "named"),
    [
        (torch.rand(8), r"torch.float32 of shape \(8,\)"),
        (torch.ones(3, 8, dtype=torch.int64), r"torch.int64 of shape \(3, 8\)"),
    ],
)
def test_bad_scores_are_refused(scores, named):
    with pytest.raises(
        ValueError, match=r"must be floating point of shape \(..., experts\), not " + named
    ):
        route(scores, 2)


@pytest.mark.parametrize("shape", [(8,), (3, 7), (1, 3, 8)])
def test_choose_by_has_scores_shape(shape):
    with pytest.raises(
        ValueError, match=r"choose_by has shape .* scores \(3, 8\): they must be the same"
    ):
        route(SCORES, 2, choose_by=torch.rand(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_attention_mask_gets_advice(dtype):
    with pytest.raises(TypeError, match=f"not {dtype}.* pass mask=attention_mask == 0"):
        route(SCORES, 2, mask=torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("shape", [(4,), (3, 1), (3, 8)])
def test_mask_has_tokens_shape(shape):
    with pytest.raises(ValueError, match=r"mask has shape .* tokens \(3,\): they must be the same"):
        route(SCORES, 2, mask=torch.zeros(shape, dtype=torch.bool))


@pytest.mark.parametrize("number", [0, 3, 16])
def test_groups_must_divide_experts(number):
    with pytest.raises(ValueError, match=f"8 experts do not divide into {number} equal groups"):
        route(SCORES, 2, groups=(number, 1))


@pytest.mark.parametrize("keep", [0, 5])
def test_keep_must_fit_groups(keep):
    with pytest.raises(ValueError, match=f"cannot keep {keep} of 4 groups"):
        route(SCORES, 2, groups=(4, keep))


def test_groups_must_reach_top_k():
    with pytest.raises(
        ValueError,
        match="1 groups of 2 experts are 2 experts, fewer than top_k = 3: keep more groups",
    ):
        route(SCORES, 3, groups=(4, 1))
    assert route(SCORES, 2, groups=(4, 1)).experts.shape == (3, 2)


def test_starved_in_groups_counts_the_open_ones():
    choose_by = torch.tensor([[5.0, -torch.inf, -torch.inf, 1.0]])
    with pytest.raises(ValueError, match="token 0 may choose only 1 experts"):
        route(torch.ones(1, 4), 2, choose_by=choose_by, groups=(2, 1))


def test_negative_gates_are_not_renormalised():
    with pytest.raises(ValueError, match="not a router's logits"):
        route(torch.tensor([[-1.0, -2.0, -3.0]]), 2, renormalize=True)


def test_whole_numbers_do_not_rank():
    with pytest.raises(ValueError, match="choose_by must be floating point"):
        route(torch.rand(4, 4), 4, choose_by=torch.ones(4, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    "scores",
    [
        (torch.randn(70_000, 4) - 2).half(),
        torch.full((4, 4), -3e38),
        torch.full((4, 4), torch.finfo().min),
    ],
)
def test_sums_that_overflow_are_no_error(scores):
    assert route(scores, 3).loads.sum() == 3 * len(scores)


@pytest.mark.parametrize("name", ["scores", "choose_by", "mask"])
def test_arrays_are_refused_by_name(name):
    tensors = {"scores": SCORES, "choose_by": SCORES, "mask": torch.zeros(3, dtype=torch.bool)}
    given = {**tensors, name: tensors[name].numpy()}
    with pytest.raises(
        TypeError, match=rf"{name} must be a torch\.Tensor, not numpy\.ndarray: convert it by"
    ):
        route(given.pop("scores"), 2, **given)
