"""A model is given its settled shifts to be saved, and gets its iterates back."""

import pytest
import torch

import equipoise
from equipoise.attach.state.sidecar import balancer_state, restore_state
from equipoise.balancing.shift.settling import belongs_to_settling
from tests.attach.tools import batch, forward, shift_of, tiny


def trained(name, steps=12):
    model = tiny(name)
    balancing = equipoise.balance(model, "quantile")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for seed in range(steps):
        forward(model, batch(seed)).backward()
        optimizer.step()
        balancing.step()
    return balancing


def centred(shift):
    return shift.double() - shift.double().mean()


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_settled_inside_and_as_before_after(name):
    balancing = trained(name)
    before = {key: value.clone() for key, value in balancer_state(balancing).items()}
    router, iterate = balancing.routers[0], shift_of(balancing)
    wanted = router.balancer.settled_shift.clone()
    assert not torch.equal(wanted, router.balancer.shift)
    with balancing.settled():
        torch.testing.assert_close(centred(router.applied_shift), centred(wanted))
        if router.found.bias is not None:
            assert torch.equal(
                balancing.model.state_dict()[router.found.bias.path].flatten(), router.applied_shift
            )
    assert torch.equal(shift_of(balancing), iterate)
    assert all(torch.equal(value, before[key]) for key, value in balancer_state(balancing).items())


def test_for_good():
    balancing = trained("deepseek_v3")
    router = balancing.routers[0]
    wanted = router.balancer.settled_shift.clone()
    balancing.settle()
    torch.testing.assert_close(centred(router.found.bias.read()), centred(wanted))


def test_a_state_without_settling_is_taken_over():
    balancing, other = trained("mixtral"), trained("mixtral", steps=2)
    old = {
        key: value
        for key, value in balancer_state(balancing).items()
        if not belongs_to_settling(key.rpartition("/")[2])
    }
    restore_state(other, old, source="an old file")
    assert torch.equal(shift_of(other), shift_of(balancing))
    router = other.routers[0]
    assert torch.equal(router.balancer.settled_shift, router.balancer.shift)
