"""Rules that follow the gap say which step size they used; whether the shift moved so is another
matter.
"""

import pytest
import torch

import equipoise
from equipoise.balancing.shift.stated_step_size import stated_step_size
from equipoise.routing import Tally

E, K = 8, 2
FOLLOW_THE_GAP = (
    "deepseek", "proportional", "inverse", "inverse_sqrt", "adagrad", "moonlight", "smebu"
)  # fmt: skip
DO_NOT = ("quantile", "curvature", "mirror", "base", "sinkhorn", "bip", "expert_choice")
LOADS = torch.tensor([0, 10, 20, 32, 32, 40, 58, 64])


def updated(name, **options):
    balancer = equipoise.balancer(name, E, top_k=K, **options)
    balancer.shift.copy_(torch.linspace(-0.1, 0.1, E))
    before = balancer.shift.clone()
    balancer.update(Tally(LOADS, LOADS[None], balancer.steps.clone()))
    return balancer, before


@pytest.mark.parametrize("name", FOLLOW_THE_GAP)
@pytest.mark.parametrize("target", [None, [4.0, *[1.0] * 7]], ids=["equal", "unequal"])
def test_shifts_move_by_step_size_times_gap(name, target):
    balancer, before = updated(name, target=target)
    step_size = stated_step_size(balancer, LOADS)
    assert (step_size.dtype, step_size.shape) == (torch.float64, (E,))
    weights = torch.ones(E) if target is None else torch.tensor(target)
    gap = weights.double() / weights.sum() * LOADS.sum() - LOADS
    moved = balancer.shift.double() - before.double()
    # the shift is float32, near 0.1 here: the sum is rounded, the step is not
    rounding = 2 * torch.finfo(torch.float32).eps * float(balancer.shift.abs().max())
    torch.testing.assert_close((step_size * gap)[gap != 0], moved[gap != 0], atol=rounding, rtol=0)


def test_deepseeks_step_size_is_u_over_the_gap():
    balancer, _ = updated("deepseek", update_rate=0.25)
    step_size = stated_step_size(balancer, LOADS)
    expected = torch.tensor([0.25 / abs(32 - load) if load != 32 else 0.0 for load in LOADS])
    torch.testing.assert_close(step_size, expected.double(), atol=0, rtol=1e-6)


@pytest.mark.parametrize("name", DO_NOT)
def test_other_balancers_have_none(name):
    balancer = equipoise.balancer(name, E, top_k=K)
    if name == "mirror":
        balancer.update(Tally(LOADS, LOADS[None], balancer.steps.clone()))
    assert stated_step_size(balancer, LOADS) is None


def test_a_rule_that_was_not_updated_states_none():
    assert stated_step_size(equipoise.balancer("deepseek", E, top_k=K), LOADS) is None


def test_the_statement_does_not_follow_the_shift():
    """Somebody else moves the shift: what the rule says it did stays as it was."""
    balancer, _ = updated("deepseek", update_rate=0.25)
    stated = stated_step_size(balancer, LOADS)
    balancer.shift.add_(torch.arange(E))
    assert torch.equal(stated_step_size(balancer, LOADS), stated)


def test_a_frozen_rule_states_zero():
    balancer = equipoise.balancer("deepseek", E, top_k=K)
    balancer.freeze()
    balancer.update(Tally(LOADS, LOADS[None], balancer.steps.clone()))
    assert not stated_step_size(balancer, LOADS).any()
