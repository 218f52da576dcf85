"""transformers computes what we do, with our weights in its own tensors: for every preset, score
function, normalisation of gates, and number of shared experts and dense layers.
"""

import dataclasses
import itertools

import pytest
import torch

from equipoise.integrations.huggingface.same_logits import compare_logits, tokens_to_compare
from equipoise.integrations.huggingface.twin_architecture import make_twin, twin_config
from equipoise.model import MODELS, DeepSeekMoE
from equipoise.routing.score_functions import SCORE_FUNCTIONS

SMALL = {"vocab_size": 300, "hidden_size": 16, "num_heads": 2, "expert_size": 8}
WITH_TWIN = ("softmax", "sigmoid")
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}


def smaller(name, **changes):
    """A preset's experts and layers in a narrow model of few tokens."""
    sizes = {**SMALL, "sequence_length": 24, "moe_layers": 2}
    return dataclasses.replace(MODELS[name], **{**sizes, **changes})


def random_net(config):
    """Weights that spread the scores, and shifts that change choices."""
    torch.manual_seed(0)
    net = DeepSeekMoE(config).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(1.0 if weight.dim() == 1 else 0.0, 0.3)
        for layer in net.moe_layers.values():
            layer.router.balancer.shift.normal_(std=0.1)
    return net


def some_tokens(config):
    return tokens_to_compare(
        torch.arange(1000).remainder(7).numpy(), config.vocab_size, config.sequence_length
    )


def differences(net, twin):
    return compare_logits(net, twin, some_tokens(net.config))


@pytest.mark.parametrize(("name", "score"), [*itertools.product(MODELS, WITH_TWIN)])
def test_every_preset_has_a_twin(name, score):
    net = random_net(smaller(name, score=score))
    assert differences(net, make_twin(net, TOKENS)).tied == 0


@pytest.mark.parametrize(
    ("score", "renormalize", "shared", "dense"),
    [*itertools.product(WITH_TWIN, (False, True), (0, 1, 2), (0, 1, 2))],
)
def test_every_setting_of_the_architecture_has_a_twin(score, renormalize, shared, dense):
    changes = {"renormalize": renormalize, "shared_experts": shared, "dense_layers": dense}
    net = random_net(smaller("tiny", score=score, num_experts=8, **changes))
    assert differences(net, make_twin(net, TOKENS)).tied == 0


@pytest.mark.parametrize("score", WITH_TWIN)
@pytest.mark.parametrize("changes", [{"num_heads": 1}, {"num_heads": 8}, {"rotary_base": 50.0}])
def test_heads_and_rotary_positions(score, changes):
    net = random_net(smaller("tiny", score=score, **changes))
    assert differences(net, make_twin(net, TOKENS)).tied == 0


def test_every_score_function_is_met_or_refused():
    for score in SCORE_FUNCTIONS.keys() - set(WITH_TWIN):
        with pytest.raises(ValueError, match=f"scores by {score}.*--model.score softmax or sig"):
            twin_config(smaller("tiny", score=score), TOKENS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe_layers": 0}, "moe_layers = 0"),
        ({"score": "sigmoid", "num_experts": 1, "top_k": 1}, "num_experts = 1 with a sigmoid"),
    ],
)
def test_what_no_family_computes_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        twin_config(smaller("tiny", **changes), TOKENS)


@pytest.mark.parametrize("score", WITH_TWIN)
@pytest.mark.parametrize("part", ["q_proj.weight", "up_proj.weight", "bias", "gate.weight"])
def test_another_model_is_told(score, part):
    """Two rows in another order, in any tensor: positions, experts, shift, gate."""
    net = random_net(smaller("tiny", score=score))
    twin = make_twin(net, TOKENS)
    key = next(key for key in reversed(twin.state_dict()) if key.endswith(part))
    weight = twin.state_dict()[key]
    with torch.no_grad():
        rows = weight.view(-1) if key.endswith("correction_bias") else weight
        rows.copy_(rows.roll(1, 0).clone())
    with pytest.raises(ValueError, match="not the one that was trained: logits of token"):
        differences(net, twin)


def test_gates_that_are_normalised_are_other_gates():
    net = random_net(smaller("tiny"))
    twin = make_twin(net, TOKENS)
    for layer in twin.model.layers[1:]:
        layer.mlp.gate.norm_min = 1e-12
    with pytest.raises(ValueError, match="not the one that was trained"):
        differences(net, twin)


def near_tie(net, row):
    """Shift an expert so that the last token's next expert comes level with its K-th, in the last
    layer.
    """
    layer = list(net.moe_layers.values())[-1]
    seen = []
    hook = layer.router.register_forward_hook(lambda router, args, output: seen.append(args[0]))
    net(row)
    hook.remove()
    logits = seen[0].flatten(0, -2)[-1] @ layer.router.weight.T
    adjusted = layer.router.balancer.adjust(logits.softmax(-1))
    best = adjusted.topk(layer.router.balancer.top_k + 1)
    last, following = best.indices[-2:]
    layer.router.balancer.shift[following] += best.values[-2] - best.values[-1] - 1e-6
    return last, following


@torch.no_grad()
def test_a_tie_excuses_the_tokens_behind_it_and_no_others():
    net = random_net(smaller("tiny"))
    row = some_tokens(net.config)[:1]
    last, following = near_tie(net, row)
    twin = make_twin(net, TOKENS)
    bias = twin.model.layers[-1].mlp.gate.moe_statics.e_score_correction_bias
    bias[0, following] += 3e-6
    compared = compare_logits(net, twin, row)
    assert compared.tied == 1
    assert "1 of them behind a tie" in str(compared)
    bias[0, last] -= 1.0
    with pytest.raises(ValueError, match="not the one that was trained"):
        compare_logits(net, twin, row)


@torch.no_grad()
def test_ties_everywhere_excuse_nothing():
    net = random_net(smaller("tiny"))
    for layer in net.moe_layers.values():
        layer.router.weight.zero_()
        layer.router.balancer.shift.zero_()
    twin = make_twin(net, TOKENS)
    for layer in twin.model.layers[1:]:
        layer.mlp.gate.moe_statics.e_score_correction_bias[0, -2:] += 1e-6
    with pytest.raises(ValueError, match="are behind a tie between experts"):
        differences(net, twin)


@torch.no_grad()
def test_numbers_that_are_none_are_told():
    net = random_net(smaller("tiny"))
    twin = make_twin(net, TOKENS)
    twin.lm_head.weight[0] = torch.nan
    with pytest.raises(ValueError, match="not the one that was trained"):
        differences(net, twin)


def test_the_tokens_compared_are_of_the_text_and_of_the_whole_vocabulary():
    tokens = tokens_to_compare(torch.arange(100).numpy(), 300, 10)
    assert tokens.shape == (8, 10)
    assert tokens[4:, 0].tolist() == [0, 20, 50, 70]
    assert tokens[:4].max() > 200
    assert tokens_to_compare(torch.arange(5).numpy(), 300, 10).shape == (4, 10)
    assert tokens_to_compare(torch.arange(5000).numpy(), 300, 4096).shape[1] == 512
