"""What a shift gives up."""

import dataclasses

import numpy as np
import pytest
import torch

import equipoise
from tests.optimum.problems import softmax_scores


def test_the_optimal_shift_gives_up_nothing():
    scores = softmax_scores(2000, 8)
    optimum = equipoise.solve(scores, 2)
    evaluation = equipoise.evaluate(scores, 2, optimum.shift, optimum=optimum)
    # equals at the boundary go to the lowest index, not where they are needed
    assert abs(evaluation.given_up) < 1e-3
    assert evaluation.imbalance < 0.01
    assert abs(evaluation.dual_gap) <= 4 * optimum.rounding_bound


def test_no_shift_keeps_more_and_balances_less():
    evaluation = equipoise.evaluate(softmax_scores(2000, 8), 2, np.zeros(8))
    assert evaluation.given_up < 0
    assert evaluation.imbalance > 0.1
    assert evaluation.dual_gap > 0


def test_a_wrong_shift_gives_up_much():
    scores = softmax_scores(2000, 8)
    optimum = equipoise.solve(scores, 2)
    assert equipoise.evaluate(scores, 2, -3 * optimum.shift, optimum=optimum).dual_gap > 1


def test_rounding_alone_gives_up_nothing():
    """Sums of the same scores in another order may differ in the last digits: no share below 0."""
    scores = softmax_scores(2000, 8)
    optimum = equipoise.solve(scores, 2)
    even = equipoise.evaluate(scores, 2, optimum.shift, optimum=optimum)
    for bounds, share in ((0.5, 0.0), (2, -2), (-0.5, 0.5), (-2, 2)):
        value = optimum.value + bounds * optimum.rounding_bound
        given_up = dataclasses.replace(even, value=value).given_up
        assert given_up == pytest.approx(share * optimum.rounding_bound / optimum.value, rel=0.1)


@pytest.mark.parametrize("size", [1e-8, 1e-12, 1.0])
def test_no_dual_is_below_the_optimum(size):
    """Shifts too small for float32 choose nothing there, but the dual is one of float64."""
    evaluation = equipoise.evaluate(np.ones((1000, 4), np.float32), 2, [0, 0, 0, size])
    assert evaluation.dual_gap >= -evaluation.optimum.rounding_bound


def test_a_shift_whose_sums_overflow_is_refused():
    scores = softmax_scores(100, 4)
    for function in (equipoise.evaluate, lambda s, k, p: equipoise.solve(s, k, shift=p)):
        with pytest.raises(ValueError, match=r"shift of expert 2 is 1e\+308: .* overflow"):
            function(scores, 2, [0, 0, 1e308, 0])


def test_loads_are_what_route_gives():
    scores = torch.from_numpy(softmax_scores(3000, 32))
    shift = 0.01 * torch.randn(32, generator=torch.Generator().manual_seed(0))
    evaluation = equipoise.evaluate(scores, 4, shift)
    routing = equipoise.route(scores, 4, choose_by=scores + shift)
    assert evaluation.loads.tolist() == routing.loads.tolist()
    assert evaluation.experts.tolist() == routing.experts.tolist()


def test_imbalance_is_relative_to_the_target():
    target = np.array([1500, 500, 0, 0])
    evaluation = equipoise.evaluate(np.eye(4)[np.zeros(2000, int)], 1, np.zeros(4), target=target)
    assert evaluation.loads.tolist() == [2000, 0, 0, 0]
    assert evaluation.imbalance == pytest.approx((1 / 3 + 1) / 2)
    assert evaluation.max_violation == pytest.approx(1 / 3)


def test_another_problems_optimum_is_refused():
    scores = softmax_scores(100, 8)
    with pytest.raises(ValueError, match="the optimum is of"):
        equipoise.evaluate(scores, 2, np.zeros(8), optimum=equipoise.solve(scores[:50], 2))
