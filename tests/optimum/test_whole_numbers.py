"""Choices in whole numbers: exact, and ties go where tokens are needed."""

import numpy as np
import pytest

from equipoise.optimum.whole_numbers import choose_by_need, in_units, units_in_one, write_choices


@pytest.mark.parametrize("largest", [1e-30, 0.3, 1.0, 1.5, 7e20])
def test_scaling_is_exact(largest):
    """A power of two; float32 scores are whole numbers of units, float64 ones to half a unit."""
    scale = units_in_one(largest)
    assert np.log2(scale) == round(np.log2(scale))
    assert in_units(np.float32(largest), scale) / scale == np.float32(largest)
    units = in_units(largest, scale)
    assert abs(units - largest * scale) <= 0.5
    assert 2**51 <= units <= 2**52


def test_nothing_but_zeros_has_a_unit():
    assert units_in_one(0.0) == 1.0


def choose_all(scores, need, top_k, shift=None):
    shift = np.zeros(scores.shape[1], np.int64) if shift is None else np.array(shift)
    chosen = np.zeros(scores.shape, np.bool_)
    choose_by_need(
        scores, np.arange(len(scores)), 2.0**10, shift, top_k, need, np.arange(len(shift)), chosen
    )
    return chosen


def test_ties_go_to_the_greatest_need_then_to_the_lowest_index():
    need = np.array([1, 0, 2, 1])
    chosen = choose_all(np.full((4, 4), 0.5), need, 1)
    assert chosen.argmax(1).tolist() == [2, 0, 2, 3]
    assert need.tolist() == [0, 0, 0, 0]


def test_better_experts_come_before_need():
    need = np.array([0, 9, 9])
    chosen = choose_all(np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.375]]), need, 2)
    assert chosen.tolist() == [[True, True, False], [True, False, True]]
    assert need.tolist() == [-2, 8, 8]


def test_a_shift_of_one_unit_decides():
    chosen = choose_all(np.full((1, 3), 0.5), np.array([9, 0, 0]), 1, shift=[0, 0, 1])
    assert chosen.tolist() == [[False, False, True]]


def test_choices_are_written_best_first_equals_by_index():
    scores = np.array([[0.25, 0.5, 0.25, 0.75], [0.0, 0.0, 0.0, 0.0]])
    chosen = np.array([[True, True, True, False], [False, True, False, True]])
    experts = np.full((3, 3), -1)
    tokens = np.array([0])
    write_choices(scores, tokens, 2.0**10, np.zeros(4, np.int64), chosen[:1], experts)
    assert experts.tolist() == [[1, 0, 2], [-1] * 3, [-1] * 3]


def test_best_first_is_by_the_shifted_score():
    scores = np.array([[0.25, 0.5, 0.375]])
    experts = np.full((1, 3), -1)
    shift = np.array([512, 0, -256])
    write_choices(scores, np.array([0]), 2.0**10, shift, np.ones((1, 3), np.bool_), experts)
    assert experts.tolist() == [[0, 1, 2]]
    write_choices(scores, np.array([0]), 2.0**10, -shift, np.ones((1, 3), np.bool_), experts)
    assert experts.tolist() == [[2, 1, 0]]
