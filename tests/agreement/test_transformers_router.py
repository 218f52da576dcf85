"""An independent judge: the gate of transformers' DeepSeek-V3 chooses and weighs as route does."""

import pytest
import torch

from equipoise import route, score_function

deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")


def random_gate(n_group, topk_group, bias):
    config = deepseek.DeepseekV3Config(
        hidden_size=32,
        n_routed_experts=64,
        num_experts_per_tok=8,
        n_group=n_group,
        topk_group=topk_group,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )
    gate = deepseek.DeepseekV3TopkRouter(config)
    torch.nn.init.normal_(gate.weight, std=0.3)
    gate.e_score_correction_bias.copy_(bias)
    return gate


@pytest.mark.parametrize(("n_group", "topk_group"), [(8, 4), (1, 1)])
@pytest.mark.parametrize("lowest", [-0.5, -3.0])
@torch.no_grad()
def test_gates_agree_with_transformers(n_group, topk_group, lowest):
    torch.manual_seed(0)
    bias = torch.empty(64).uniform_(lowest, lowest + 1)  # at -3 every shifted score is negative
    gate = random_gate(n_group, topk_group, bias)
    logits, their_gates, their_experts = gate(torch.randn(512, 32))
    scores = score_function("sigmoid")(logits)
    routing = route(
        scores,
        8,
        choose_by=scores + bias,
        groups=(n_group, topk_group),
        renormalize=True,
        scale=2.5,
    )
    experts, order = routing.experts.sort(1)
    their_experts, their_order = their_experts.sort(1)
    assert torch.equal(experts, their_experts)
    torch.testing.assert_close(routing.gates.gather(1, order), their_gates.gather(1, their_order))
    assert ((scores + bias).max() < 0) == (lowest == -3.0)
