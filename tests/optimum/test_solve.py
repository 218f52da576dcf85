"""The exact solver on easy problems, hard ones and wrong ones. Judges of its values:
tests/agreement.
"""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.optimum import exact, newton
from tests.optimum.problems import allowed_target, softmax_scores

T, E, K = 3000, 16, 3
RANDOM = np.random.default_rng(7)


def preferred_by_all():
    scores = softmax_scores(T, E, dtype=np.float64)
    scores[:, 5] += 3
    return scores


HARD = {
    "softmax": softmax_scores(T, E),
    "all equal": np.full((T, E), 0.25, np.float32),
    "identical tokens": np.repeat(RANDOM.random((1, E), np.float32), T, axis=0),
    "ten kinds of token": RANDOM.random((10, E), np.float32)[RANDOM.integers(0, 10, T)],
    "a grid of 256 values": np.floor(RANDOM.random((T, E)) * 256).astype(np.float32) / 256,
    "a grid of 4 values": np.floor(RANDOM.random((T, E)) * 4).astype(np.float32) / 4,
    "one expert preferred by all": preferred_by_all(),
    "float32 values an ulp apart": (1 + 1.2e-7 * RANDOM.integers(0, 3, (T, E))).astype(np.float32),
    "float32 values 1e-8 apart": (0.1 + 1e-8 * RANDOM.integers(0, 9, (T, E))).astype(np.float32),
    "huge": (softmax_scores(T, E) * 1e30).astype(np.float32),
    "huge for float32": (softmax_scores(T, E) * 3e38).astype(np.float32),
    "huge for float64": softmax_scores(T, E, dtype=np.float64) * 1e280,
    "tiny": softmax_scores(T, E, dtype=np.float64) * 1e-280,
    "negative": softmax_scores(T, E) - 5,
    "all zero": np.zeros((T, E)),
    "magnitudes far apart": RANDOM.normal(size=(T, E)) * 10.0 ** RANDOM.integers(-9, 9, (1, E)),
}


def check(scores, solution, lower, upper):
    solution.verify(scores)
    assert abs(solution.gap) <= solution.rounding_bound
    assert (solution.loads >= lower).all()
    assert (solution.loads <= upper).all()


@pytest.mark.parametrize("name", HARD)
def test_hard_scores(name):
    solution = equipoise.solve(HARD[name], K)
    check(HARD[name], solution, T * K // E, -(-T * K // E))


@pytest.mark.parametrize("name", HARD)
def test_hard_scores_with_unequal_targets(name):
    target = allowed_target(np.random.default_rng(3), T, E, K)
    check(HARD[name], equipoise.solve(HARD[name], K, target=target), target, target)


@pytest.mark.parametrize("top_k", [1, 2, E - 1, E])
def test_every_k(top_k):
    scores = softmax_scores(800, E)
    solution = equipoise.solve(scores, top_k)
    check(scores, solution, 800 * top_k // E, 800 * top_k // E)


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"),
    [(1, 1, 1), (1, 5, 2), (3, 8, 2), (7, 2, 1), (5, 40, 39), (64, 2, 1)],
)
def test_few_tokens_or_experts(tokens, experts, top_k):
    scores = softmax_scores(tokens, experts)
    check(
        scores,
        equipoise.solve(scores, top_k),
        tokens * top_k // experts,
        -(-tokens * top_k // experts),
    )


def test_targets_of_none_and_of_all():
    scores = softmax_scores(100, 5)
    target = np.array([100, 0, 60, 40, 0])
    solution = equipoise.solve(scores, 2, target=target)
    check(scores, solution, target, target)
    assert (solution.experts == 0).any(axis=1).all()


def test_targets_that_mean_whole_numbers_are_whole():
    scores = softmax_scores(300, 3)
    solution = equipoise.solve(scores, 1, target=300 * np.array([1 / 3, 1 / 6, 1 / 2]))
    assert solution.loads.tolist() == [100, 50, 150]
    assert not solution.rounded_target


def test_loads_are_floor_or_ceiling_where_the_target_is_no_whole_number():
    scores = softmax_scores(1001, 7)
    whole, rounded = equipoise.solve(scores, 3), equipoise.solve(scores[:1000], 3)
    assert (set(whole.loads.tolist()), whole.rounded_target) == ({429}, False)
    assert (set(rounded.loads.tolist()), rounded.rounded_target) == ({428, 429}, True)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e6])
def test_any_start_gives_the_optimum(scale):
    scores = softmax_scores(20000, E)
    start = scale * np.random.default_rng(1).normal(size=E)
    assert equipoise.solve(scores, K, shift=start).value == pytest.approx(
        equipoise.solve(scores, K).value, rel=1e-12
    )


def test_a_good_start_is_read_less():
    scores = softmax_scores(100_000, E, seed=1)
    cold = equipoise.solve(scores, K)
    assert equipoise.solve(scores, K, shift=cold.shift).passes < cold.passes


@pytest.mark.parametrize("tokens", [9000, 70_000])
def test_samples_lead_to_the_same_optimum(tokens, monkeypatch):
    scores = softmax_scores(tokens, E)
    with_samples = equipoise.solve(scores, K).value
    monkeypatch.setattr(sys.modules["equipoise.optimum.solve"], "_SAMPLES", ())
    assert equipoise.solve(scores, K).value == pytest.approx(with_samples, rel=1e-12)


def test_chains_alone_find_the_optimum(monkeypatch):
    """Newton only saves time: without a step of it the chains do all the work."""
    scores = softmax_scores(400, 8)
    expected = equipoise.solve(scores, 2)
    monkeypatch.setattr(newton, "_trust_step", lambda *step: None)
    alone = equipoise.solve(scores, 2)
    alone.verify(scores)
    assert alone.value == pytest.approx(expected.value, rel=1e-12)


@pytest.mark.parametrize(
    "given",
    [
        lambda scores: np.asfortranarray(scores),
        lambda scores: np.repeat(scores, 2, axis=1)[:, ::2],
        lambda scores: scores.astype(">f4"),
        lambda scores: torch.from_numpy(scores),
        lambda scores: torch.from_numpy(scores).requires_grad_(),
        lambda scores: scores.tolist(),
    ],
    ids=["fortran", "strided", "big-endian", "tensor", "with gradient", "lists"],
)
def test_any_layout(given):
    scores = softmax_scores(500, E)
    assert np.array_equal(
        equipoise.solve(given(scores), K).experts, equipoise.solve(scores, K).experts
    )


def test_half_precision_is_widened():
    scores = torch.from_numpy(softmax_scores(500, E)).bfloat16()
    assert equipoise.solve(scores, K).value == equipoise.solve(scores.float(), K).value


def test_a_read_only_memory_map(tmp_path):
    scores = softmax_scores(500, E)
    np.save(tmp_path / "scores.npy", scores)
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")
    assert np.array_equal(equipoise.solve(mapped, K).experts, equipoise.solve(scores, K).experts)


def test_scores_are_not_changed():
    scores = softmax_scores(500, E)
    before = scores.copy()
    equipoise.solve(scores, K)
    assert np.array_equal(scores, before)


@given(st.integers(0, 2**32), st.floats(-10, 10), st.integers(2, 9))
@settings(deadline=None)  # the first call may compile
def test_a_constant_and_a_permutation_change_nothing(seed, constant, experts):
    draw = np.random.default_rng(seed)
    scores = draw.random((60, experts))
    value = equipoise.solve(scores, 1).value
    order = draw.permutation(experts)
    assert equipoise.solve(scores[:, order] + constant, 1).value == pytest.approx(
        value + 60 * constant, rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"top_k": 0}, ValueError, "top_k = 0 is not between 1 and the 16 experts"),
        ({"top_k": 17}, ValueError, "top_k = 17 is not between 1 and the 16 experts"),
        ({"top_k": 1.5}, TypeError, "top_k must be a whole number"),
        (
            {"scores": np.zeros(5)},
            ValueError,
            r"\(tokens, experts\) and not empty, but have shape \(5,\)",
        ),
        ({"scores": np.zeros((0, 5))}, ValueError, "not empty"),
        ({"scores": np.zeros((5, 16), int)}, TypeError, "must be float32 or float64, not int64"),
        (
            {"target": np.full(16, 563)},
            ValueError,
            "targets sum to 9008, but 3000 tokens taking 3 experts each make 9000",
        ),
        (
            {"target": [3001] + [0] * 15},
            ValueError,
            "the target of expert 0 is 3001: not between 0 and the 3000 tokens",
        ),
        ({"target": [-1.0] + [9001 / 15] * 15}, ValueError, "the target of expert 0 is -1.0"),
        ({"target": [1, 2]}, ValueError, "one load for each of 16 experts"),
        ({"target": [np.nan] * 16}, ValueError, "targets must be finite"),
        ({"shift": np.zeros(3)}, ValueError, "one number for each of 16 experts"),
        ({"shift": np.full(16, np.inf)}, ValueError, "the shift of expert 0 is not finite"),
        ({"scores": np.full((5, 16), 1e300)}, ValueError, "would overflow"),
    ],
)
def test_wrong_input_is_refused(arguments, error, message):
    given = {"scores": HARD["softmax"], "top_k": K} | arguments
    with pytest.raises(error, match=message):
        equipoise.solve(**given)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_refused_with_their_place(wrong):
    scores = softmax_scores(100, 4)
    scores[[71, 90], [2, 1]] = wrong
    with pytest.raises(
        ValueError, match=r"2 values that are NaN or infinite, the first at \(token 71, expert 2\)"
    ):
        equipoise.solve(scores, 2)


def swap(solution, scores):
    """Two tokens exchange an expert: allowed, but worse."""
    experts = solution.experts.copy()
    other = next(i for i in range(1, len(experts)) if not set(experts[i]) & set(experts[0]))
    experts[0, 0], experts[other, 0] = experts[other, 0], experts[0, 0]
    return {"experts": experts}


@pytest.mark.parametrize(
    ("doctored", "message"),
    [
        (swap, "not a top-K"),
        (lambda s, scores: {"shift": s.shift + np.linspace(0, 0.01, E)}, "not a top-K"),
        (lambda s, scores: {"value": s.value + 1}, "value is said to be"),
        (lambda s, scores: {"dual_value": s.dual_value + 1}, "dual_value is said to be"),
        (lambda s, scores: {"loads": s.loads[::-1] + 1}, "loads are not what"),
        (lambda s, scores: {"experts": s.experts[:, :2]}, "experts have shape"),
        (lambda s, scores: {"experts": np.repeat(s.experts[:, :1], K, 1)}, "has an expert twice"),
        (lambda s, scores: {"experts": s.experts + E}, "not all between 0 and"),
        (lambda s, scores: {"upper": s.upper - 1}, "tokens, not"),
    ],
)
def test_a_doctored_proof_is_caught(doctored, message):
    scores = softmax_scores(T, E)
    solution = equipoise.solve(scores, K)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(solution, **doctored(solution, scores)).verify(scores)


@pytest.mark.parametrize("size", [1e6, 1e17, 1e200])
def test_a_shift_that_swamps_the_scores_proves_nothing(size):
    """Its rounding would allow any assignment: the loads are right, the value is not."""
    scores = softmax_scores(T, E, dtype=np.float64)
    solution = equipoise.solve(scores, K)
    # every token takes three neighbours, in turn: even loads, whatever the scores
    experts = (np.arange(T)[:, None] * K + np.arange(K)) % E
    shift = np.full(E, size)
    claim = dataclasses.replace(
        solution,
        experts=experts,
        loads=np.bincount(experts.ravel(), minlength=E),
        shift=shift,
        value=np.take_along_axis(scores, experts, 1).sum(),
        dual_value=np.take_along_axis(scores, experts, 1).sum(),
    )
    assert claim.value < 0.8 * solution.value
    with pytest.raises(ValueError, match=r"the shift reaches .* its rounding"):
        claim.verify(scores)


def test_a_shift_that_is_no_number_proves_nothing():
    scores = softmax_scores(T, E)
    solution = equipoise.solve(scores, K)
    with pytest.raises(ValueError, match="the shift of expert 0 is not finite"):
        dataclasses.replace(solution, shift=np.full(E, np.nan)).verify(scores)


def test_progress_says_what_is_done():
    lines = []
    equipoise.solve(softmax_scores(9000, E), K, progress=lines.append)
    assert any("sample" in line for line in lines)
    assert any("chains" in line for line in lines)


@pytest.mark.parametrize("noise", [1e-9, 1e-12])
def test_scores_equal_up_to_noise_are_searched_as_far_as_they_differ(noise, monkeypatch):
    """Not as far as they are large: every move of every token would be held in memory."""
    reaches = []
    in_units = exact._reach_in_units
    monkeypatch.setattr(
        exact,
        "_reach_in_units",
        lambda reach, scale: reaches.append(reach) or in_units(reach, scale),
    )
    random = np.random.default_rng(0)
    scores = 1 + noise * (random.normal(size=(8192, 64)) + 2 * random.normal(size=64))
    solution = equipoise.solve(scores, 4)
    check(scores, solution, 512, 512)
    assert len(reaches) > 1
    assert max(reaches) < 10 * noise


def test_too_many_moves_are_named(monkeypatch):
    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(exact, "move_along_chains", no_memory)
    with pytest.raises(MemoryError, match=r"tokens, each of 3 experts to 13 others: .* GB"):
        equipoise.solve(softmax_scores(T, E), K)


def test_a_long_search_is_announced():
    random, lines = np.random.default_rng(0), []
    rank_one = random.random((600, 1)) * random.random((1, 128))
    equipoise.solve(rank_one, 4, progress=lines.append)
    assert not any("may take" in line for line in lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["equipoise.optimum.solve"], "_WORTH_TELLING", 0.0)
        equipoise.solve(rank_one, 4, progress=lines.append)
    assert any("may take" in line for line in lines)


def test_torch_keeps_its_number_of_threads():
    """In a new process: numba's threads start once, and would change OpenMP's number."""
    script = """
import numpy, torch, equipoise
torch.set_num_threads(1)
before = torch.get_num_threads()
equipoise.solve(numpy.random.default_rng(0).random((20_000, 8)), 2)
print(before, torch.get_num_threads())
"""
    env = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300
    )
    assert ran.stdout.split() == ["1", "1"], ran.stderr


def test_any_start_is_right_however_small_the_scores():
    random = np.random.default_rng(0)
    for _ in range(20):
        scores = random.standard_normal((7, 8)) * 1e-300
        found = equipoise.solve(scores, 6, shift=random.standard_normal(8) * 1e9)
        assert found.value == pytest.approx(equipoise.solve(scores, 6).value, rel=1e-12)


def test_a_warm_start_helps_in_every_unit():
    """Scores are scaled to near one before the search, and the shift with them."""
    scores = softmax_scores(8192, 16, seed=3) * 2.0**20
    cold = equipoise.solve(scores, 3)
    warm = equipoise.solve(scores, 3, shift=cold.shift)
    assert warm.passes < 0.75 * cold.passes
    assert warm.value == cold.value
