"""Checks on scores: what is refused, where the message points, and when they run."""

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from equipoise import check_scores, route
from equipoise.routing import checks


@pytest.fixture(autouse=True)
def _auto():
    with check_scores("auto"):
        yield


def poisoned(value, places=((1, 2), (3, 0))):
    scores = torch.ones(4, 5)
    for place in places:
        scores[place] = value
    return scores


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_bad_scores_are_located(value):
    with pytest.raises(
        ValueError, match=r"scores hold 2 values .* first at \(token 1, expert 2\).*float32"
    ):
        route(poisoned(value), 2)


def test_opposite_infinities_are_found():
    scores = poisoned(torch.inf, [(0, 1)])
    scores[2, 2] = -torch.inf
    with pytest.raises(ValueError, match=r"2 values .* \(token 0, expert 1\)"):
        route(scores, 2)


def test_later_tokens_are_numbered_flat():
    with pytest.raises(ValueError, match=r"first at \(token 3, expert 2\)"):
        route(poisoned(torch.nan, [(3, 2)]).view(2, 2, 5), 2)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_bad_choose_by_blames_shift(value):
    with pytest.raises(
        ValueError, match=r"choose_by holds 2 values .* \(token 1, expert 2\).* look at the shift"
    ):
        route(torch.ones(4, 5), 2, choose_by=poisoned(value))


def test_minus_infinity_forbids_experts():
    choose_by = torch.zeros(4, 5)
    choose_by[2, :3] = -torch.inf
    routing = route(torch.ones(4, 5), 2, choose_by=choose_by)
    assert sorted(routing.experts[2].tolist()) == [3, 4]
    assert routing.margin[2] == torch.inf


def test_starved_token_is_named():
    choose_by = torch.zeros(4, 5)
    choose_by[2:, :3] = -torch.inf
    with pytest.raises(ValueError, match=r"token 2 may choose only 2 experts .* but top_k is 3"):
        route(torch.ones(4, 5), 3, choose_by=choose_by)


def test_overflowing_sum_is_accepted():
    most = torch.finfo(torch.float32).max
    scores = torch.full((4, 5), most) * torch.tensor([1.0, 0.5, 0.25, 0.125, 0.1])
    assert scores.sum() == torch.inf
    assert route(scores, 2).experts.tolist() == [[0, 1]] * 4
    assert route(torch.ones(4, 5), 2, choose_by=scores).experts.tolist() == [[0, 1]] * 4


@pytest.mark.parametrize(
    ("mode", "on_cpu", "on_gpu"), [("auto", 1, 0), ("always", 1, 1), ("never", 0, 0)]
)
def test_modes_choose_devices(mode, on_cpu, on_gpu):
    gpu_scores = SimpleNamespace(device=torch.device("cuda"), is_meta=False)
    with check_scores(mode):
        assert checks.scores_are_checked(torch.ones(1)) == on_cpu
        assert checks.scores_are_checked(gpu_scores) == on_gpu
        assert not checks.scores_are_checked(torch.ones(1, device="meta"))


def test_never_checks_nothing():
    with check_scores("never"):
        assert route(poisoned(torch.nan), 2).gates.isnan().any()
        assert route(
            torch.ones(4, 5), 2, choose_by=torch.full((4, 5), -torch.inf)
        ).experts.shape == (4, 2)


def test_block_restores_mode():
    with check_scores("always"):
        with check_scores("never"):
            assert checks._mode == "never"
        assert checks._mode == "always"
    assert checks._mode == "auto"


def test_failing_block_restores_mode():
    with pytest.raises(ZeroDivisionError), check_scores("never"):
        _ = 1 / 0
    assert checks._mode == "auto"


def test_plain_call_sets_mode():
    check_scores("never")
    assert route(poisoned(torch.nan), 2).gates.isnan().any()


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="one of 'auto', 'always', 'never', not 'sometimes'"):
        check_scores("sometimes")
    with pytest.raises(ValueError, match="scores hold"):  # the mode is as before
        route(poisoned(torch.nan), 2)


def test_environment_sets_mode():
    program = (
        "import torch; from equipoise import route; route(torch.full((2, 3), torch.nan), "
        "1); print('unchecked')"
    )
    environment = {**os.environ, "EQUIPOISE_CHECK_SCORES": "never"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "unchecked", done.stderr


def test_unknown_environment_is_refused(monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CHECK_SCORES", "sometimes")
    with pytest.raises(
        ValueError, match=r"EQUIPOISE_CHECK_SCORES must be one of .* not 'sometimes'"
    ):
        runpy.run_path(checks.__file__)


def test_compiled_code_is_unchecked():
    compiled = torch.compile(lambda scores: route(scores, 2).gates, backend="eager", fullgraph=True)
    with check_scores("always"):
        assert compiled(poisoned(torch.nan)).isnan().any()
