"""The step size of an update is read off from what moved, for every rule that follows the gap."""

import pytest
import torch

import equipoise
from equipoise.balancing.shift.applied_step_size import applied_step_size
from equipoise.routing import Tally

E, K = 8, 2
FOLLOW_THE_GAP = (
    "deepseek", "proportional", "inverse", "inverse_sqrt", "mirror", "adagrad", "moonlight", "smebu"
)  # fmt: skip
DO_NOT = ("quantile", "curvature", "base", "sinkhorn", "bip", "expert_choice")
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
    step_size = applied_step_size(balancer, LOADS, before, balancer.shift)
    assert (step_size.dtype, step_size.shape) == (torch.float64, (E,))
    weights = torch.ones(E) if target is None else torch.tensor(target)
    gap = weights.double() / weights.sum() * LOADS.sum() - LOADS
    moved = balancer.shift.double() - before.double()
    torch.testing.assert_close((step_size * gap)[gap != 0], moved[gap != 0], atol=0, rtol=1e-12)


def test_deepseeks_step_size_is_u_over_the_gap():
    balancer, before = updated("deepseek", update_rate=0.25)
    step_size = applied_step_size(balancer, LOADS, before, balancer.shift)
    expected = torch.tensor([0.25 / abs(32 - load) if load != 32 else 0.0 for load in LOADS])
    torch.testing.assert_close(step_size, expected.double(), atol=0, rtol=1e-6)


@pytest.mark.parametrize("name", DO_NOT)
def test_other_balancers_have_none(name):
    balancer = equipoise.balancer(name, E, top_k=K)
    assert applied_step_size(balancer, LOADS, torch.zeros(E), torch.ones(E)) is None
