"""What people see when they type a name: one line, with what tells two of them apart."""

import numpy as np
import pytest
import torch

import equipoise
from equipoise.balancing import Dual, method_specs
from equipoise.balancing.penalties import AuxiliaryLoss
from equipoise.balancing.shift.directions import LoadGap
from equipoise.balancing.shift.parts import Scale, Sign

SCORES = np.random.default_rng(0).random((400, 8), dtype=np.float32)


@pytest.mark.parametrize("spec", method_specs(), ids=lambda spec: spec.name)
def test_a_balancer_says_its_name_and_rate(spec):
    made = equipoise.balancer(spec.name, 8, top_k=2)
    assert repr(made).startswith(f"{spec.name}(num_experts=8, top_k=2")
    assert "\n" not in repr(made)
    if spec.rate:
        other = equipoise.balancer(spec.name, 8, top_k=2, **{spec.rate: 0.125})
        assert f"{spec.rate}=0.125" in repr(other)
        assert f"{spec.rate}=" in repr(made) != repr(other)


def test_a_balancer_shows_other_options_and_what_it_carries():
    made = equipoise.balancer("deepseek", 4, top_k=2, target=[1, 2, 3, 4])
    made.carry(AuxiliaryLoss(1e-4, "sequence"))
    assert repr(made) == (
        "deepseek(num_experts=4, top_k=2, update_rate=0.001, target=<4 values>, carries "
        "AuxiliaryLoss(coefficient=0.0001, scope='sequence'))"
    )


def test_a_balancer_of_ones_own_says_its_parts():
    made = Dual(8, 2, LoadGap("relative"), [Sign(), Scale(0.1)])
    assert repr(made) == (
        "Dual(num_experts=8, top_k=2, LoadGap(unit='relative'), Sign(), Scale(by=0.1))"
    )


def test_a_copy_says_the_same(tmp_path):
    import copy

    made = equipoise.balancer("quantile", 8, top_k=2, ema=0.5)
    assert repr(copy.deepcopy(made)) == repr(made)
    # and state dicts know nothing of it
    other = equipoise.balancer("quantile", 8, top_k=2)
    other.load_state_dict(made.state_dict())
    assert "ema=0" in repr(other)


def test_a_layer_is_short():
    assert "(balancer): deepseek(num_experts=8, top_k=2" in repr(equipoise.MoE(16, 8, 8, 2))


def test_a_solution_is_one_line():
    optimum = equipoise.solve(SCORES, top_k=2)
    line = repr(optimum)
    assert "\n" not in line
    assert line.startswith("Solution(tokens=400, experts=8, top_k=2, loads=100, value=")
    assert len(line) < 140
    uneven = equipoise.solve(SCORES[:399], top_k=2)
    assert "loads=99..100" in repr(uneven)


def test_an_evaluation_is_one_line():
    line = repr(equipoise.evaluate(SCORES, 2, np.zeros(8)))
    assert "\n" not in line
    assert line.startswith("Evaluation(imbalance=0.")
    assert "given_up=" in line


def test_a_placement_is_one_line():
    loads = np.random.default_rng(0).integers(1, 100, (6, 2, 8))
    line = repr(equipoise.place(loads, devices=4))
    assert "\n" not in line
    assert line.startswith("Placement(experts=8, copies=0, devices=4, layers=2, fullest={")
    assert len(line) < 180


def test_a_module_without_a_name_is_as_torch_shows_it():
    assert repr(torch.nn.Linear(2, 3)) == "Linear(in_features=2, out_features=3, bias=True)"
