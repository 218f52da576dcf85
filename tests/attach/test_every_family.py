"""One training step of every family: counted exactly, padding left out, and the shift moved where
it should be.
"""

import copy

import pytest
import torch

import equipoise
from tests.attach.families import WITH_BIAS, WITHOUT_BIAS, present, returns_logits
from tests.attach.tools import batch, forward, witnessed_loads


@pytest.mark.parametrize("family", present(WITH_BIAS), ids=str)
def test_a_bias_is_counted_and_moved(family):
    model = family.model().train()
    twin, inputs = copy.deepcopy(model), batch(padded=True)
    balancing = equipoise.balance(model, "deepseek", update_rate=0.5)
    forward(model, inputs).backward()
    balancing.step()
    loads = balancing.metrics(loads=True)["loads"]
    for router in balancing.routers:
        if router.name.endswith("vision_moe"):
            assert sum(loads[router.name]) == 0  # no picture, no choice
            continue
        counted = torch.tensor(loads[router.name])
        assert torch.equal(counted, witnessed_loads(twin, router.name, family.num_experts, inputs))
        step = 0.5 * (counted.float().mean() - counted).sign()
        bias = model.state_dict()[router.found.bias.path].flatten()
        torch.testing.assert_close(bias, step - step.mean())
        assert bias.any()


@pytest.mark.parametrize("family", present(WITHOUT_BIAS), ids=str)
def test_without_a_bias_the_choice_is_shifted(family):
    model = family.model().train()
    twin, inputs = copy.deepcopy(model), batch(padded=True)
    names = list(model.state_dict())
    balancing = equipoise.balance(model, "deepseek", update_rate=100.0)
    forward(model, inputs).backward()
    balancing.step()
    first = balancing.metrics(loads=True)["loads"]
    assert all(
        torch.equal(torch.tensor(loads), witnessed_loads(twin, name, family.num_experts, inputs))
        for name, loads in first.items()
    )
    assert list(model.state_dict()) == names
    forward(model, inputs).backward()
    balancing.step()
    second = balancing.metrics(loads=True)["loads"]
    for router in balancing.routers:  # a shift of 100 beats every score
        before, after = torch.tensor(first[router.name]), torch.tensor(second[router.name])
        light = before < before.float().mean()
        assert after[light].sum() > before[light].sum()
        assert after.sum() == before.sum()


@pytest.mark.parametrize("name", ["quantile", "curvature"])
@pytest.mark.parametrize("family", present(WITH_BIAS), ids=str)
def test_rules_that_look_at_scores_agree_with_the_core(family, name):
    model, inputs, logits = family.model().train(), batch(padded=True), []
    if not returns_logits(family):
        with pytest.raises(ValueError, match="does not return its logits"):
            equipoise.balance(model, name)
        return
    balancing = equipoise.balance(model, name)
    router = balancing.routers[0]
    router.found.gate.register_forward_hook(
        lambda _, args, output: logits.append(
            (output if torch.is_tensor(output) else output[0]).detach()
        )
    )
    forward(model, inputs).backward()
    balancing.step()
    scores = (
        logits[0]
        if family.score == "identity"
        else equipoise.score_function(family.score)(logits[0])
    )
    twin = equipoise.balancer(name, family.num_experts, top_k=family.top_k)
    routing = twin.route(
        scores, groups=router.found.spec.groups, mask=inputs["attention_mask"].flatten() == 0
    )
    twin.update(twin.tally(scores, routing))
    torch.testing.assert_close(router.balancer.shift, twin.shift)
    assert twin.shift.any()
