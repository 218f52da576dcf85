"""One way from a name, a Balancer or a function to a balancer, wherever one is taken."""

import pytest
import torch

import equipoise
from equipoise.balancing import Dual, method_specs, resolve_balancer


def test_a_name_takes_options():
    made = resolve_balancer("deepseek", 8, 2, {"update_rate": 0.5})
    assert made.parts[-1].by == 0.5


def test_a_balancer_is_itself():
    given = equipoise.balancer("quantile", 8, top_k=2)
    assert resolve_balancer(given, 8, 2) is given


def test_a_function_is_called_with_the_sizes():
    made = resolve_balancer(lambda E, K: equipoise.balancer("mirror", E, top_k=K), 8, 2)
    assert (made.num_experts, made.top_k) == (8, 2)


@pytest.mark.parametrize("wrap", [lambda given: given, lambda given: lambda E, K: given])
def test_another_size_is_refused(wrap):
    given = wrap(equipoise.balancer("none", 4, top_k=2))
    with pytest.raises(ValueError, match="top 2 of 4 experts, the layer for top 2 of 8"):
        resolve_balancer(given, 8, 2)


def test_options_are_for_names():
    given = equipoise.balancer("none", 8, top_k=2)
    with pytest.raises(TypeError, match=r"options \(update_rate\) .* set them in your Balancer"):
        resolve_balancer(given, 8, 2, {"update_rate": 1.0})
    with pytest.raises(TypeError, match=r"options \(update_rate\) .* set them in your function"):
        resolve_balancer(lambda E, K: given, 8, 2, {"update_rate": 1.0})


def test_layers_do_not_share_a_balancer():
    given = equipoise.balancer("none", 8, top_k=2)
    with pytest.raises(TypeError, match="belongs to one layer"):
        resolve_balancer(given, 8, 2, per_layer=True)


def test_nonsense_is_refused():
    with pytest.raises(TypeError, match="not as 3"):
        resolve_balancer(3, 8, 2)
    with pytest.raises(TypeError, match="returned None, which is no Balancer"):
        resolve_balancer(lambda E, K: None, 8, 2)


@pytest.mark.parametrize("spec", method_specs(), ids=lambda spec: spec.name)
def test_every_balancer_has_a_shift_or_zeros(spec):
    made = spec.make(8, 2)
    assert torch.equal(made.shift_or_zeros, torch.zeros(8))
    if isinstance(made, Dual):
        made.shift.fill_(0.5)
        assert torch.equal(made.shift_or_zeros, torch.full((8,), 0.5))
