"""A layer as in DeepSeek-V3's own code: its experts are a ModuleList, which is never called."""

import pytest
import torch
from torch import nn

import equipoise

EXPERTS, TOP_K, WIDTH = 8, 2, 16


class Gate(nn.Module):
    def __init__(self, returns):
        super().__init__()
        self.returns = returns
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(EXPERTS), requires_grad=False)

    def forward(self, hidden):
        logits = hidden.flatten(0, -2) @ self.weight.T
        scores = logits.sigmoid()
        chosen = torch.topk(scores + self.e_score_correction_bias, TOP_K, sorted=False).indices
        weights = scores.gather(1, chosen)
        self.last = chosen
        return {
            "indices": (chosen, weights),
            "logits": (chosen, weights, logits),
            "weights": torch.zeros_like(scores).scatter(1, chosen, weights),
        }[self.returns]


class Block(nn.Module):
    def __init__(self, returns):
        super().__init__()
        self.gate = Gate(returns)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, hidden):
        chosen, weights = self.gate(hidden)[:2]
        flat, answer = hidden.flatten(0, -2), torch.zeros_like(hidden).flatten(0, -2)
        for place, expert in enumerate(self.experts):
            rows, slots = (chosen == place).nonzero(as_tuple=True)
            answer = answer.index_add(0, rows, expert(flat[rows]) * weights[rows, slots, None])
        return answer.view_as(hidden)


class Model(nn.Module):
    def __init__(self, returns="indices"):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(returns)])

    def forward(self, hidden):
        return self.layers[0](hidden)


@pytest.mark.parametrize(
    ("returns", "rule"), [("indices", "deepseek"), ("logits", "deepseek"), ("logits", "quantile")]
)
@pytest.mark.parametrize("frozen_input", [True, False])
def test_experts_called_one_by_one_are_counted(returns, rule, frozen_input):
    model = Model(returns)
    balancing = equipoise.balance(model, rule)
    hidden = torch.randn(3, 20, WIDTH, requires_grad=not frozen_input)
    expected = torch.zeros(EXPERTS, dtype=torch.long)
    for _ in range(2):
        model(hidden).square().mean().backward()
        expected += torch.bincount(model.layers[0].gate.last.flatten(), minlength=EXPERTS)
    with torch.no_grad():
        model(hidden)
    balancing.step()
    assert balancing.metrics(loads=True)["loads"]["layers.0"] == expected.tolist()
    assert model.layers[0].gate.e_score_correction_bias.any()


def test_scores_that_are_not_shown_are_refused():
    with pytest.raises(ValueError, match="does not return its logits"):
        equipoise.balance(Model("indices"), "quantile")


def test_a_gate_that_hides_its_choice_is_refused_by_name():
    with pytest.raises(ValueError, match=r"layers\.0 calls its experts one by one \(a ModuleList"):
        equipoise.balance(Model("weights"))


def test_experts_that_are_bypassed_are_named():
    """Their forward exists, but the block does not call it."""

    class Fused(nn.Linear):
        pass

    model = Model()
    block = model.layers[0]
    block.experts = Fused(WIDTH, WIDTH)
    block.forward = lambda hidden: block.experts.weight.sum() * block.gate(hidden)[1].sum()
    balancing = equipoise.balance(model)
    model(torch.randn(3, WIDTH)).backward()
    with pytest.raises(RuntimeError, match=r"but were not counted: layers\.0"):
        balancing.step()
