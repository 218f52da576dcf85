"""What is kept of a choice: margins, their level, and the gates that experts are called with."""

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.attach.replay import ExpertChoices
from equipoise.attach.replay.choice_measures import measure_choice
from tests.attach.tools import batch, tiny


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_moe", "gpt_oss", "ernie4_5_moe"])
def test_gates_are_those_that_experts_are_called_with(name, tmp_path):
    model, called = tiny(name).eval(), {}
    balancing = equipoise.balance(model, "deepseek")
    for router in balancing.routers:
        # a shift that changes the choice, and must not enter a gate
        router.shift.set(0.3 * torch.randn(router.found.spec.num_experts))
        router.found.experts.register_forward_pre_hook(
            lambda module, args, kwargs, name=router.name: called.update(
                {name: [*args, *kwargs.values()][2]}
            ),
            with_kwargs=True,
        )
    with torch.no_grad(), balancing.record_experts(margins=True) as recording:
        model(**batch())
    loaded = ExpertChoices.load(recording.save(tmp_path / "a.npz"))
    for layer in recording.layers:
        gates = called[layer].reshape(loaded[layer].shape).float()
        gates = gates / gates.sum(1, keepdim=True)
        assert loaded.gates[layer] == pytest.approx(gates.numpy(), abs=1e-5)
        assert np.array_equal(loaded.levels[layer], recording.levels[layer])


def spec_of(score, fill=None):
    return RoutingSpec(4, 2, None, None, fill, score, 0, None, True, False)


def test_measures_by_hand():
    ranked, taken = torch.tensor([[0.1, 0.4, 0.3, 0.2]]), torch.tensor([[1, 0]])
    shift = torch.tensor([0.0, -1.0, 0.0, 0.0])
    found = measure_choice(ranked, ranked, taken, spec_of("softmax"), shift, None)
    # 0.3 and 0.2 are chosen and 0.1 is not; the gates are of what was taken, without the shift
    assert found.margins.tolist() == pytest.approx([0.1])
    assert found.levels.tolist() == pytest.approx([0.2])
    assert found.gates.tolist()[0] == pytest.approx([0.8, 0.2])
    found = measure_choice(ranked + shift, ranked + shift, taken, spec_of("softmax"), None, shift)
    assert found.gates.tolist()[0] == pytest.approx([0.8, 0.2])
    assert found.margins.tolist() == pytest.approx([0.1])
    found = measure_choice(ranked, ranked, taken, spec_of("identity"), None, None)
    assert found.gates.tolist()[0] == pytest.approx(torch.tensor([0.4, 0.1]).softmax(0).tolist())


def test_where_no_other_may_be_chosen_the_margin_is_infinite():
    ranked = torch.tensor([[0.5, 0.3, -torch.inf, -torch.inf]])
    found = measure_choice(ranked, ranked, torch.tensor([[0, 2]]), spec_of("sigmoid"), None, None)
    assert found.margins.tolist() == [torch.inf]
    assert found.levels.tolist() == pytest.approx([0.3])
    assert found.gates.tolist() == [[1.0, 0.0]]
    # where it is seen what they were before groups were masked, gates are of these
    scores = torch.tensor([[0.5, 0.3, 0.1, 0.1]])
    found = measure_choice(ranked, scores, torch.tensor([[0, 2]]), spec_of("sigmoid"), None, None)
    assert found.gates[0].tolist() == pytest.approx([5 / 6, 1 / 6])


def test_damaged_measures_are_refused(tmp_path):
    recording = ExpertChoices()
    recording.add_rows("a", np.array([[0, 1]]), np.array([1.0]), gates=np.array([[1.0]]))
    with pytest.raises(ValueError, match="the gates of a are not one for each"):
        ExpertChoices.load(recording.save(tmp_path / "a.npz"))
