"""The loop and its fast twin walk the same path, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.optimum.loop import (
    FixedScores,
    choose_top_k,
    deepseek_rule,
    inverse_rule,
    inverse_sqrt_rule,
    iterate,
    iterate_fast,
)

RULES = {"deepseek": deepseek_rule, "inverse": inverse_rule, "inverse_sqrt": inverse_sqrt_rule}


def assert_same_path(problem, rule, steps, **options):
    slow, fast = (
        iterate(problem, rule, steps, **options),
        iterate_fast(problem, rule, steps, **options),
    )
    assert slow.shifts.tobytes() == fast.shifts.tobytes()
    assert slow.loads.tobytes() == fast.loads.tobytes()


@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(1, 60),
    experts=st.integers(1, 9),
    top_k=st.integers(1, 9),
    levels=st.sampled_from([2, 7, 1000, 2**40]),
    rate=st.sampled_from([1e-4, 1e-3, 0.1, 0.125]),
    rule=st.sampled_from(sorted(RULES)),
)
@settings(max_examples=150, deadline=None)
def test_the_twin_is_exact(seed, tokens, experts, top_k, levels, rate, rule):
    """Also where scores tie: few levels, and rates that are powers of two."""
    scores = np.random.default_rng(seed).integers(0, levels, (tokens, experts)) / levels
    assert_same_path(FixedScores(scores, min(top_k, experts)), RULES[rule](rate), 40)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_twin_breaks_ties_alike(rule):
    """More experts equal the K-th than there are places, at every anchor."""
    for seed in range(10):
        scores = np.random.default_rng(seed).integers(0, 2, (30, 6)) / 2
        assert_same_path(FixedScores(scores, 2), RULES[rule](0.125), 20)


def test_the_twin_is_exact_over_many_anchors():
    rng = np.random.default_rng(0)
    scores = 1 / (1 + np.exp(-rng.normal(size=(600, 16)) - rng.normal(size=16)))
    assert_same_path(FixedScores(scores, 3), deepseek_rule(1e-3), 1500)
    assert_same_path(FixedScores(scores, 3), deepseek_rule(1e-3), 100, shift=rng.normal(size=16))


def test_the_twin_looks_at_few_tokens(monkeypatch):
    """At T = 4,096 and u = 1e-4 a settled step chooses again for a small share of the tokens."""
    from equipoise.optimum import loop as module

    seen = []
    recount = module._recount_loads
    monkeypatch.setattr(
        module,
        "_recount_loads",
        lambda shift, near, *rest: seen.append(near) or recount(shift, near, *rest),
    )
    scores = np.random.default_rng(0).random((4096, 16))
    module.iterate_fast(FixedScores(scores, 4), deepseek_rule(1e-4), 400)
    assert len(seen) > 390  # anchors are few
    assert 0 < np.mean(seen[200:]) < 0.05 * 4096


def test_choose_breaks_ties_by_index():
    shifted = np.array([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 2.0, 2.0]])
    assert choose_top_k(shifted, 2).tolist() == [[0, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0]]


def test_the_loop_follows_the_paper():
    """Four tokens like expert 0; the shift moves until two of them do not."""
    scores = np.array([[0.50, 0.10], [0.50, 0.20], [0.50, 0.30], [0.50, 0.40]])
    path = iterate(FixedScores(scores, 1), deepseek_rule(0.06), 3)
    assert path.loads.tolist() == [[4, 0], [3, 1], [2, 2], [2, 2]]
    np.testing.assert_allclose(path.shifts[-1], [-0.12, 0.12])


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (FixedScores(np.ones((3, 4)), 5), r"top_k = 5 of scores of shape \(3, 4\)"),
        (FixedScores(np.ones(3), 1), "they are"),
        (FixedScores(np.full((3, 4), np.nan), 2), "finite"),
    ],
)
@pytest.mark.parametrize("loop", [iterate, iterate_fast])
def test_impossible_problems_are_refused(problem, message, loop):
    with pytest.raises(ValueError, match=message):
        loop(problem, deepseek_rule(0.1), 1)
