"""The settled shift: for every rule with a shift, a function of its shifts alone, that training
never routes by.
"""

import copy
import itertools

import pytest
import torch

import equipoise
from equipoise.balancing import Dual
from equipoise.balancing.mathematics.smoothing import smoothing_gain
from equipoise.balancing.shift.settling import Settling, belongs_to_settling
from tests.contracts.table import NUM_EXPERTS, ROWS, assert_same_state, exact_scores, forward, train

DUALS = [row for row in ROWS if isinstance(made := row.make(), Dual) and made.settling is not None]


def slow_twin(shifts):
    """The same from the list of all shifts, the first one being that before the first update."""
    p = [shift.double() for shift in shifts]
    short, long, settled = 0.0, 0.0, p[0]
    for t in range(1, len(p)):
        if t >= 4:
            short = 0.9 * short + (p[t] - p[t - 2]).square().mean()
            long = 0.9 * long + (p[t] - p[t - 4]).square().mean()
        drift = max(long - short, 0.0) / 2
        noise = (short - 2 * drift) / 2
        gain = 1.0
        if noise > 0:
            s = drift / noise
            gain = max((float(s * s + 4 * s) ** 0.5 - float(s)) / 2, 0.1)
        settled = settled + gain * (p[t] - settled)
    return settled


def walk(steps, drift, noise, seed):
    rng = torch.Generator().manual_seed(seed)
    path = (drift * torch.randn(steps, 16, generator=rng)).cumsum(0)
    return path, path + noise * torch.randn(steps, 16, generator=rng)


def settle_all(shifts):
    settling = Settling(shifts.shape[1])
    for before, after in itertools.pairwise(shifts):
        settling.see(before, after)
    return settling


@pytest.mark.parametrize(
    ("drift", "noise"), [(0.0, 1e-3), (1e-4, 1e-3), (1e-3, 1e-3), (1e-3, 0.0), (1e-3, 1e-4)]
)
@pytest.mark.parametrize("steps", [2, 4, 5, 6, 40])
def test_it_is_what_all_shifts_together_say(drift, noise, steps):
    _, shifts = walk(steps, drift, noise, seed=steps)
    torch.testing.assert_close(
        settle_all(shifts).settled, slow_twin(shifts).float(), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("row", DUALS, ids=str)
def test_in_a_balancer_it_is_what_its_shifts_say(row):
    balancer = row.make()
    shifts = [balancer.shift.clone()]
    for seed in range(12):
        train(balancer, 1, first_seed=seed)
        if not torch.equal(balancer.shift, shifts[-1]):
            shifts.append(balancer.shift.clone())
    torch.testing.assert_close(
        balancer.settled_shift, slow_twin(shifts).float(), rtol=1e-3, atol=1e-6
    )
    assert balancer.settled_shift.dtype == torch.float32


def test_noise_is_smoothed_and_steady_movement_is_followed():
    off = {}
    for seed in range(20):
        path, shifts = walk(60, drift=1e-3, noise=4e-3, seed=seed)
        off.setdefault("iterate", []).append((shifts[-1] - path[-1]).square().mean())
        off.setdefault("settled", []).append(
            (settle_all(shifts).settled - path[-1]).square().mean()
        )
    assert sum(off["settled"]) < 0.5 * sum(off["iterate"])
    ramp = torch.arange(60.0).unsqueeze(1) * torch.linspace(-1e-3, 1e-3, 16)
    assert torch.equal(settle_all(ramp).settled, ramp[-1])


def test_next_to_no_noise_means_next_to_no_smoothing():
    settling = Settling(4)
    settling.moved_short.fill_(1.0)
    for long in (2 - 1e-6, 2.0, 3.0):
        settling.moved_long.fill_(long)
        assert smoothing_gain(settling.moved_short, settling.moved_long) > 0.999
    for long in (0.5, 1.0):
        settling.moved_long.fill_(long)
        assert smoothing_gain(settling.moved_short, settling.moved_long) == pytest.approx(0.1)


@pytest.mark.parametrize("row", DUALS, ids=str)
def test_training_routes_by_the_iterate_and_evaluation_changes_nothing(row):
    balancer = row.make()
    train(balancer, 8)
    before, settled = copy.deepcopy(balancer), balancer.settled_shift.clone()
    scores = exact_scores(seed=5)
    with equipoise.settled(balancer):
        assert torch.equal(balancer.shift, settled)
        balancer.eval()
        moved = settled - before.shift
        torch.testing.assert_close(balancer.adjust(scores), before.adjust(scores) + moved)
        forward(balancer, scores)
    balancer.train()
    assert_same_state(balancer, before)


@pytest.mark.parametrize("row", DUALS, ids=str)
def test_settling_for_good_is_done_once(row):
    balancer = row.make()
    train(balancer, 8)
    settled = balancer.settled_shift.clone()
    for _ in range(2):
        balancer.settle()
        assert torch.equal(balancer.shift, settled)
        assert torch.equal(balancer.settled_shift, settled)


@pytest.mark.parametrize("row", DUALS, ids=str)
def test_resumed_it_goes_on_as_if_nothing_had_happened(row):
    whole, first, second = row.make(), row.make(), row.make()
    train(whole, 12)
    train(first, 7)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, 5, first_seed=107)
    assert_same_state(second, whole)
    assert torch.equal(second.settled_shift, whole.settled_shift)


@pytest.mark.parametrize("row", DUALS, ids=str)
def test_a_state_without_it_still_loads(row):
    old, new = row.make(), row.make()
    train(old, 6)
    train(new, 3)
    new.load_state_dict(
        {name: value for name, value in old.state_dict().items() if not belongs_to_settling(name)}
    )
    assert torch.equal(new.shift, old.shift)
    assert torch.equal(new.settled_shift, old.shift)
    train(new, 3, first_seed=106)
    train(old, 3, first_seed=106)
    assert torch.equal(new.shift, old.shift)


def test_half_a_state_does_not_load():
    balancer = DUALS[1].make()
    state = balancer.state_dict()
    del state["settling.recent"]
    with pytest.raises(RuntimeError, match="recent"):
        balancer.load_state_dict(state)


@pytest.mark.parametrize("row", DUALS, ids=str)
def test_frozen_it_rests_too(row):
    balancer = row.make()
    train(balancer, 8)
    settled = balancer.settled_shift.clone()
    balancer.freeze()
    train(balancer, 4, first_seed=300)
    assert torch.equal(balancer.settled_shift, settled)


@pytest.mark.parametrize("name", ["deepseek", "quantile", "curvature"])
def test_with_nothing_to_choose_it_stays(name):
    balancer = equipoise.balancer(name, NUM_EXPERTS, top_k=NUM_EXPERTS)
    train(balancer, 6)
    assert torch.equal(balancer.settled_shift, balancer.shift)


def test_a_shift_written_by_hand_is_taken_as_it_is():
    balancer = equipoise.balancer("quantile", NUM_EXPERTS, top_k=3)
    train(balancer, 8)
    balancer.shift.fill_(0.25)
    assert torch.equal(balancer.settled_shift, balancer.shift)
    train(balancer, 1)
    assert torch.equal(balancer.settled_shift, balancer.shift)


def test_one_expert_written_by_hand_is_enough():
    balancer = equipoise.balancer("quantile", NUM_EXPERTS, top_k=3)
    train(balancer, 8)
    balancer.shift[1] += 0.25
    assert torch.equal(balancer.settled_shift, balancer.shift)


def test_curvature_filters_already():
    balancer = equipoise.balancer("curvature", NUM_EXPERTS, top_k=3)
    train(balancer, 8)
    assert torch.equal(balancer.settled_shift, balancer.shift)
    assert not any(belongs_to_settling(name) for name in balancer.state_dict())
