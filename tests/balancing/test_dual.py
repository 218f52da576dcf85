"""The shift's life: targets, units, freezing, annealing, state."""

import copy

import pytest
import torch

import equipoise
from equipoise.balancing import Dual
from equipoise.balancing.shift.directions import LoadGap
from equipoise.balancing.shift.parts import Clip, Momentum, Scale, Sign
from equipoise.routing import Tally


def tally_of(balancer, loads):
    loads = torch.tensor(loads)
    return Tally(loads, loads.unsqueeze(0), balancer.steps.clone())


def shift_after(name, loads, **options):
    balancer = equipoise.balancer(name, len(loads), top_k=2, **options)
    balancer.update(tally_of(balancer, loads))
    return balancer.shift


def test_deepseek_moves_by_its_rate():
    assert torch.equal(
        shift_after("deepseek", [10, 20, 30], update_rate=0.5), torch.tensor([0.5, 0.0, -0.5])
    )


@pytest.mark.parametrize(
    ("unit", "expected"), [("counts", 10.0), ("tokens", 10 / 30), ("relative", 0.5)]
)
def test_units_scale_the_gap(unit, expected):
    moved = shift_after("proportional", [10, 20, 30], update_rate=1.0, unit=unit)
    torch.testing.assert_close(moved, torch.tensor([expected, 0.0, -expected]))


def test_units_convert_as_documented():
    """u_relative = u_tokens K/E and u_counts = u_tokens / T."""
    loads, u = [10, 25, 25, 20], 0.7
    tokens = shift_after("inverse", loads, update_rate=u)
    torch.testing.assert_close(
        shift_after("inverse", loads, update_rate=u * 2 / 4, unit="relative"), tokens
    )
    torch.testing.assert_close(
        shift_after("inverse", loads, update_rate=u / 40, unit="counts"), tokens
    )


def test_unequal_targets_are_met():
    balanced = shift_after("deepseek", [40, 20, 20], target=[2, 1, 1])
    assert not balanced.any()
    assert torch.equal(
        shift_after("deepseek", [30, 30, 20], target=[2, 1, 1]).sign(),
        torch.tensor([1.0, -1.0, 0.0]),
    )


def test_balance_is_exact_for_awkward_sizes():
    """49 * (1/49) is not 1 in floating point; the gap must be 0 all the same."""
    for num_experts in range(2, 200):
        gap = equipoise.balancer("deepseek", num_experts, top_k=1).target.gap(
            torch.full((num_experts,), 7)
        )
        assert not gap.any(), num_experts


def test_steps_are_counted():
    balancer = equipoise.balancer("inverse", 3, top_k=2, update_rate=1.0, unit="counts")
    for expected in (10.0, 15.0, 15.0 + 10 / 3):
        balancer.update(tally_of(balancer, [10, 20, 30]))
        torch.testing.assert_close(float(balancer.shift[0]), expected)
    assert balancer.steps == 3


def test_annealing_slows_to_rest():
    balancer = equipoise.balancer("deepseek", 2, top_k=1, update_rate=1.0)
    balancer.anneal(4)
    path = []
    for _ in range(6):
        before = float(balancer.shift[0])
        balancer.update(tally_of(balancer, [1, 3]))
        path.append(float(balancer.shift[0]) - before)
    assert path == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_annealing_survives_resuming():
    whole = equipoise.balancer("deepseek", 2, top_k=1, update_rate=1.0)
    whole.anneal(4)
    whole.update(tally_of(whole, [1, 3]))
    resumed = equipoise.balancer("deepseek", 2, top_k=1, update_rate=1.0)
    resumed.load_state_dict(whole.state_dict())
    for balancer in (whole, resumed):
        balancer.update(tally_of(balancer, [1, 3]))
    assert torch.equal(whole.shift, resumed.shift)
    assert float(resumed.shift[0]) == 1.75


def test_own_compositions_work():
    balancer = Dual(3, 2, LoadGap("relative"), [Sign(), Momentum(0.5), Scale(1.0), Clip(1.25)])
    balancer.update(tally_of(balancer, [10, 20, 30]))
    balancer.update(tally_of(balancer, [10, 20, 30]))
    assert balancer.shift.tolist() == [2.25, 0.0, -2.25]
    assert "parts.1.memory" in balancer.state_dict()


def test_copies_are_independent():
    balancer = equipoise.balancer("smebu", 3, top_k=2)
    twin = copy.deepcopy(balancer)
    balancer.update(tally_of(balancer, [10, 20, 30]))
    assert not twin.shift.any()
    assert twin.steps == 0


def test_damaged_states_are_told():
    balancer = equipoise.balancer("deepseek", 3, top_k=2)
    state = balancer.state_dict() | {"shift": balancer.shift.bfloat16()}
    with pytest.warns(UserWarning, match="shift was saved in torch.bfloat16 and has lost digits"):
        balancer.load_state_dict(state, assign=True)
    assert balancer.shift.dtype == torch.float32


def test_foreign_scores_are_refused():
    balancer = equipoise.balancer("deepseek", 4, top_k=2)
    with pytest.raises(ValueError, match="over 5 experts, the balancer over 4"):
        balancer.adjust(torch.rand(8, 5))
    with pytest.raises(ValueError, match="over 5 experts, the balancer over 4"):
        balancer.tally(torch.rand(8, 5), equipoise.route(torch.rand(8, 5), 2))
    with pytest.raises(ValueError, match="tally is of 3 experts, the balancer has 4"):
        balancer.update(tally_of(balancer, [1, 2, 3]))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([1, 1], "2 weights, but there are 3 experts"),
        ([1, 1, 0], "positive"),
        ([1, 1, float("nan")], "positive"),
        ([8, 1, 1], "expert 0 for 1.6 times the tokens"),
    ],
)
def test_impossible_targets_are_refused(target, message):
    with pytest.raises(ValueError, match=message):
        equipoise.balancer("deepseek", 3, top_k=2, target=target)


def test_adjust_carries_no_gradient():
    scores = torch.rand(8, 4, requires_grad=True)
    assert not equipoise.balancer("deepseek", 4, top_k=2).adjust(scores).requires_grad


def test_penalty_is_zero():
    scores = torch.rand(8, 4, requires_grad=True)
    balancer = equipoise.balancer("deepseek", 4, top_k=2)
    assert balancer.penalty(scores, equipoise.route(scores, 2)) == 0


def test_a_missing_runner_up_is_told():
    scores = torch.rand(8, 4)
    for name in ("quantile", "curvature"):
        balancer = equipoise.balancer(name, 4, top_k=2)
        with pytest.raises(ValueError, match="needs the runner-up"):
            balancer.tally(scores, equipoise.route(scores, 2, runner_up=False))


@pytest.mark.parametrize("name", ["deepseek", "adagrad", "proportional"])
def test_targets_that_are_no_binary_fractions_can_be_met(name):
    balancer = equipoise.balancer(name, 3, top_k=1, target=[0.1, 0.2, 0.7])
    scores = torch.eye(3).repeat_interleave(torch.tensor([10, 20, 70]), dim=0)
    for _ in range(5):
        routing = balancer.route(scores)
        assert routing.loads.tolist() == [10, 20, 70]
        balancer.update(balancer.tally(scores, routing))
    assert not balancer.shift.any()


def test_half_of_all_choices_is_a_target_for_top_two():
    assert (
        equipoise.balancer("deepseek", 3, top_k=2, target=[0.5, 0.45, 0.05]).target.weights.sum()
        == 1
    )


@pytest.mark.parametrize("name", ["deepseek", "inverse", "inverse_sqrt"])
@pytest.mark.parametrize("rate", ["1e-3", float("nan"), float("inf"), -1.0])
def test_rates_that_are_none_are_refused(name, rate):
    with pytest.raises(ValueError, match="a rate must be a finite number, 0 or more"):
        equipoise.balancer(name, 4, top_k=1, update_rate=rate)


@pytest.mark.parametrize("updates", [float("nan"), float("inf"), -1, "10"])
def test_annealing_over_no_number_is_refused(updates):
    balancer = equipoise.balancer("deepseek", 4, top_k=2)
    with pytest.raises(ValueError, match="cannot anneal over"):
        balancer.anneal(updates)
    assert balancer.rest_at == torch.inf


@pytest.mark.parametrize(
    ("mine", "other"),
    [("quantile", "deepseek"), ("curvature", "quantile"), ("deepseek", "quantile")],
)
def test_another_rules_tally_is_refused(mine, other):
    scores = torch.rand(32, 8, generator=torch.Generator().manual_seed(0))
    balancer, foreign = (equipoise.balancer(name, 8, top_k=2) for name in (mine, other))
    tally = foreign.tally(scores, foreign.route(scores))
    with pytest.raises(ValueError, match="another rule's"):
        balancer.update(tally)
    assert balancer.steps == 0


def test_a_histogram_of_other_bins_is_refused():
    scores = torch.rand(32, 8, generator=torch.Generator().manual_seed(0))
    fine, coarse = (equipoise.balancer("quantile", 8, top_k=2, bins=bins) for bins in (512, 64))
    with pytest.raises(ValueError, match=r"'leads': \(8, 66\)"):
        fine.update(coarse.tally(scores, coarse.route(scores)))


@pytest.mark.parametrize(("num_experts", "top_k"), [(64, 6), (512, 1), (4096, 8)])
@pytest.mark.parametrize("rate", [0.1, 10.0])
def test_mirror_stays_finite_however_long_loads_are_one_sided(num_experts, top_k, rate):
    balancer = equipoise.balancer("mirror", num_experts, top_k=top_k, update_rate=rate)
    loads = [1024] * top_k + [0] * (num_experts - top_k)
    # 0.1 of a target load per update: 10,000 of them are as 1,000, which float32 could not hold
    for _ in range(1_000 if rate < 1 else 100):
        balancer.update(tally_of(balancer, loads))
    assert torch.isfinite(balancer.shift).all()
    assert balancer.shift.abs().max() == 16
    assert torch.isfinite(balancer.settled_shift).all()
    # and comes back from there
    for _ in range(200):
        balancer.update(tally_of(balancer, loads[::-1]))
    assert balancer.shift[0] > 0 > balancer.shift[-1]


def test_mirror_leaves_a_shift_written_by_hand():
    balancer = equipoise.balancer("mirror", 4, top_k=2)
    balancer.shift.copy_(torch.tensor([100.0, -0.3, 0.0, 17.0]))
    balancer.update(tally_of(balancer, [5, 5, 5, 5]))
    assert torch.equal(balancer.shift, torch.tensor([100.0, -0.3, 0.0, 17.0]))
