"""Finding a method by name."""

import pytest
import torch

import equipoise
from equipoise.balancing import method_spec


def test_near_names_are_offered():
    with pytest.raises(
        ValueError,
        match=r"no balancer 'deepsek' \(did you mean 'deepseek'\?\): there are none, deepseek",
    ):
        equipoise.balancer("deepsek", 8, top_k=2)


def test_near_options_are_offered():
    with pytest.raises(
        TypeError,
        match=r"no option 'update_rates' \(did you mean 'update_rate'\?\): it takes update_rate",
    ):
        equipoise.balancer("deepseek", 8, top_k=2, update_rates=1e-3)


def test_foreign_options_are_refused():
    with pytest.raises(
        TypeError, match=r"deepseek has no option 'bins': it takes update_rate, target"
    ):
        equipoise.balancer("deepseek", 8, top_k=2, bins=8)


@pytest.mark.parametrize("top_k", [0, 9])
def test_impossible_top_k_is_refused(top_k):
    with pytest.raises(ValueError, match="1 <= top_k <= num_experts"):
        equipoise.balancer("deepseek", 8, top_k=top_k)


def test_bad_options_say_why():
    with pytest.raises(ValueError, match="ema must be in"):
        equipoise.balancer("quantile", 8, top_k=2, ema=1.0)
    with pytest.raises(
        ValueError, match="unit must be one of counts, tokens, relative, not 'token'"
    ):
        equipoise.balancer("inverse", 8, top_k=2, unit="token")
    with pytest.raises(ValueError, match="width must be positive"):
        equipoise.balancer("mirror", 8, top_k=2, width=0.0)
    for bins in (0, 1, 7):
        with pytest.raises(ValueError, match="even number of bins, at least 2"):
            equipoise.balancer("quantile", 8, top_k=2, bins=bins)


@pytest.mark.parametrize("name", equipoise.balancers())
def test_every_method_says_what_it_does(name):
    assert len(method_spec(name).constructor.__doc__ or "") > 20


@pytest.mark.parametrize("name", equipoise.balancers())
@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (4, 4), (2, 1)])
def test_smallest_sizes_stay_finite(name, num_experts, top_k):
    balancer = equipoise.balancer(name, num_experts, top_k=top_k)
    for seed in range(3):
        scores = torch.rand(1, 8, num_experts, generator=torch.Generator().manual_seed(seed))
        routing = balancer.route(scores)
        balancer.update(balancer.tally(scores, routing))
    assert torch.isfinite(routing.gates).all()
    shift = balancer.shift_or_zeros
    assert torch.isfinite(shift).all()
    if top_k == num_experts:
        assert not shift.any()  # every expert has every token: nothing to balance
        assert routing.loads.eq(8).all()


@pytest.mark.parametrize("name", equipoise.balancers())
def test_an_array_is_refused_by_its_type(name):
    scores = torch.rand(1, 16, 8, generator=torch.Generator().manual_seed(0))
    balancer = equipoise.balancer(name, 8, top_k=2)
    routing = balancer.route(scores)
    array = scores.numpy()
    for call in (
        lambda: balancer.adjust(array),
        lambda: balancer.route(array),
        lambda: balancer.tally(array, routing),
        lambda: balancer.penalty(array, routing),
    ):
        with pytest.raises(TypeError, match=r"scores must be a torch\.Tensor, not numpy\.ndarray"):
            call()
