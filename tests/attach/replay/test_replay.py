"""Replay under what training loops do: accumulation, recomputation, padding, live tokens, copies;
and what is refused.
"""

import copy
import pickle

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attach.replay.expert_choices import ExpertChoices, narrow_integers
from tests.attach.own_models import FOUND, OwnModel, hidden_states
from tests.attach.tools import BY_NAME, batch, forward, tiny

pytestmark = pytest.mark.filterwarnings(
    "ignore:forwards whose experts are replayed", "ignore:a step was skipped"
)
TOKENS = 36
MODELS = ["deepseek_v3", "qwen3_moe"]  # with a bias of its own, and without


def given_of(balancing, seed=0, tokens=TOKENS):
    rng = torch.Generator().manual_seed(seed)
    return {
        router.name: torch.rand(tokens, router.found.spec.num_experts, generator=rng).argsort(-1)[
            :, : router.found.spec.top_k
        ]
        for router in balancing.routers
    }


def gradients_of(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def same(first, second):
    assert first
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_two_forwards_before_their_backwards(name, reentrant):
    model = tiny(name)
    balancing = equipoise.balance(model, "deepseek")
    givens = given_of(balancing, 1), given_of(balancing, 2)
    wanted = []
    for seed, given in enumerate(givens):
        with balancing.replay(given):
            forward(model, batch(seed)).backward()
        wanted.append(gradients_of(model))
    balancing.drop()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    losses = []
    for seed, given in enumerate(givens):
        with balancing.replay(given):
            losses.append(forward(model, batch(seed)))
    live = forward(model, batch(2))
    for loss, expected in zip(losses, wanted):
        loss.backward()
        assert same(gradients_of(model), expected)
    live.backward()


def test_the_same_tokens_with_other_experts_are_not_guessed():
    model = tiny("qwen3_moe")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    balancing = equipoise.balance(model, "deepseek")
    losses = []
    for seed in (1, 2):
        with balancing.replay(given_of(balancing, seed)):
            losses.append(forward(model, batch()))
    with pytest.raises(RuntimeError, match="2 forwards of the same tokens"):
        losses[0].backward()


def test_a_backward_after_the_step_is_refused():
    model = tiny("qwen3_moe")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    balancing = equipoise.balance(model, "deepseek")
    with balancing.replay(given_of(balancing)):
        loss = forward(model, batch())
    balancing.step()
    with pytest.raises(RuntimeError, match="ranked its 36 tokens so"):
        loss.backward()


@pytest.mark.parametrize("name", MODELS)
def test_minus_one_routes_live_and_is_reported(name):
    model, inputs = tiny(name), batch(padded=True)
    balancing = equipoise.balance(model, "deepseek")
    with torch.no_grad():
        plain = model(**inputs).logits
        with balancing.record_experts() as recording:
            model(**inputs)
        live = {layer: np.full((TOKENS, 2), -1) for layer in recording.layers}
        with balancing.replay(live) as replayed:
            assert torch.equal(model(**inputs).logits, plain)
        assert replayed.live_share == 1.0
        first = recording.layers[0]
        some = recording.experts
        some[first] = some[first].astype(np.int16)
        some[first][:9] = -1  # of row 0, whose tokens from 7 on are padding
        with balancing.replay(some) as replayed:
            assert torch.equal(model(**inputs).logits, plain)
    kept = int(inputs["attention_mask"].sum())
    assert replayed.live_share_by_layer[first] == 7 / kept
    assert replayed.live_share == 7 / kept / len(recording.layers)


@pytest.mark.parametrize("name", MODELS)
def test_its_own_choice_is_tallied_on_request(name):
    model, inputs = tiny(name), batch(padded=True)
    balancing = equipoise.balance(model, "deepseek", update_rate=0.5)
    forward(model, inputs)
    wanted = balancing.routers[0].take_tally().loads
    balancing.drop()
    with balancing.replay(given_of(balancing), tally="own"):
        forward(model, inputs).backward()
    balancing.step()
    first = balancing.routers[0]
    assert torch.equal(balancing.last_tallies[first.name].loads, wanted)
    assert first.applied_shift.any()


def replay_steps(model, balancing, steps):
    for seed in range(steps):
        with balancing.replay(given_of(balancing, seed)):
            forward(model, batch(seed)).backward()
        balancing.step()


RULES = ["deepseek", "smebu", "inverse", "mirror", "adagrad", "quantile", "curvature"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_no_rule_moves_by_a_replay(name, rule):
    model = tiny(name)
    balancing = equipoise.balance(model, rule)
    for seed in range(3):  # until it has moments
        forward(model, batch(seed)).backward()
        balancing.step()
    before = [copy.deepcopy(router.balancer.state_dict()) for router in balancing.routers]
    with pytest.warns(UserWarning, match="leave the shift where it is") as warned:
        replay_steps(model, balancing, 2)
    assert len([each for each in warned if "leave the shift" in str(each.message)]) == 1
    for router, old in zip(balancing.routers, before):
        assert torch.equal(router.balancer.shift, old["shift"])
    forward(model, batch()).backward()
    balancing.step()
    assert not torch.equal(balancing.routers[0].balancer.shift, before[0]["shift"])


def test_live_forwards_of_the_step_still_count():
    model = tiny("deepseek_v3")
    balancing = equipoise.balance(model, "deepseek")
    with balancing.replay(given_of(balancing)):
        forward(model, batch(0)).backward()
    forward(model, batch(1)).backward()
    balancing.step()
    assert sum(balancing.metrics(loads=True)["loads"][balancing.routers[0].name]) == 2 * TOKENS


def test_experts_outside_the_chosen_groups_have_gates_and_gradients():
    # its gates are the values of the last top-K, of scores that are 0 outside the groups
    family = BY_NAME["deepseek_v2"]
    config = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 1}
    model = type(family)("deepseek_v2", overrides=config).model().train()
    balancing = equipoise.balance(model, "deepseek")
    spec = balancing.routers[0].found.spec
    assert (spec.groups.number, spec.fill) == (4, 0.0)
    gate, gates = balancing.routers[0].found.gate, []
    gate.register_forward_hook(lambda module, args, output: gates.append(output))
    given = given_of(balancing)
    with balancing.replay(given):
        forward(model, batch()).backward()
    logits, weights, _ = gates[0]
    scores = logits.softmax(-1).gather(-1, given[balancing.routers[0].name])
    torch.testing.assert_close(weights, scores * gate.routed_scaling_factor)
    assert (gate.weight.grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("layer", FOUND, ids=lambda layer: layer.__name__)
def test_layers_of_ones_own(layer):
    model, hidden = OwnModel(layer).eval(), hidden_states()
    balancing = equipoise.balance(model, "deepseek")
    with torch.no_grad():
        torch.manual_seed(0)
        with balancing.record_experts() as recording:
            plain = model(hidden)
        torch.manual_seed(0)
        with balancing.replay(recording):
            again = model(hidden)
        assert torch.equal(plain, again)
        model.received()
        given = given_of(balancing, tokens=hidden.shape[0] * hidden.shape[1])
        with balancing.replay(given):
            model(hidden)
    counts = [np.bincount(rows.numpy().ravel(), minlength=6).tolist() for rows in given.values()]
    assert model.received() == counts


def test_what_a_generation_chose_is_replayed_in_training():
    model = tiny("qwen3_moe").eval()
    balancing = equipoise.balance(model, "deepseek")
    prompt = batch()["input_ids"][:1]
    with balancing.record_experts() as rollout:
        tokens = model.generate(prompt, max_new_tokens=6, do_sample=False, min_new_tokens=6)
    model.train()
    with balancing.replay(rollout), balancing.record_experts() as training:
        loss = forward(model, {"input_ids": tokens[:, :-1], "use_cache": False})
    loss.backward()
    assert len(rollout[rollout.layers[0]]) == tokens.shape[1] - 1
    assert all(np.array_equal(training[layer], rollout[layer]) for layer in rollout.layers)


def test_layers_by_index_by_name_and_as_one_array():
    model = tiny("deepseek_v3").eval()  # layer 0 is dense, or not: by its config
    balancing = equipoise.balance(model, "deepseek")
    given = given_of(balancing)
    numbers = [int(name.split(".")[2]) for name in given]
    every_layer = np.zeros((TOKENS, 2, 2), np.int16)
    for number, rows in zip(numbers, given.values()):
        every_layer[:, number] = rows
    forms = [
        dict(zip(numbers, given.values())),
        every_layer,
        np.stack(list(given.values()), 1),
        every_layer.reshape(3, 12, 2, 2),
    ]
    for form in forms:
        with torch.no_grad(), balancing.replay(form), balancing.record_experts() as taken:
            model(**batch())
        for name, rows in given.items():
            assert np.array_equal(taken[name], rows.numpy())


def test_recordings_are_small():
    assert narrow_integers(np.array([[0, 255]])).dtype == np.uint8
    assert narrow_integers(np.array([[0, 256]])).dtype == np.int16
    assert narrow_integers(np.array([[-1, 3]])).dtype == np.int16
    assert narrow_integers(np.array([[0, 2**15]])).dtype == np.int32


def test_a_recording_is_saved_and_read(tmp_path):
    model = tiny("mixtral").eval()
    balancing = equipoise.balance(model, "deepseek")
    with torch.no_grad(), balancing.record_experts(margins=True) as recording:
        model(**batch())
    read = ExpertChoices.load(recording.save(tmp_path / "a.npz"))
    for layer in recording.layers:
        assert np.array_equal(read[layer], recording[layer])
        assert np.array_equal(read.margins[layer], recording.margins[layer])
        assert 0 <= read.margins[layer].min() < read.margins[layer].max()
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"b\.npz is no recording of experts"):
        ExpertChoices.load(tmp_path / "b.npz")


def wrong(balancing, change):
    given = {name: rows.numpy() for name, rows in given_of(balancing).items()}
    return change(given, next(iter(given)))


def put(value):
    def change(given, first):
        given[first][5] = value
        return given

    return change


WRONG = {
    "beyond the experts": (put([1, 8]), r"layers\.0\.mlp, token 5: experts \[1, 8\] .*0 to 7"),
    "below -1": (put([-2, 0]), r"token 5: experts \[-2, 0\]"),
    "twice": (put([3, 3]), r"token 5: experts \[3, 3\].*takes an expert once"),
    "half live": (put([-1, 3]), r"token 5: .*all experts of a token or none"),
    "another K": (
        lambda g, first: {**g, first: g[first][:, :1]},
        r"layers\.0\.mlp: experts of shape",
    ),
    "a layer too few": (lambda g, first: {first: g[first]}, r"given for model\.layers\.1\.mlp"),
    "an unknown layer": (lambda g, first: {**g, "layers.9": g[first]}, "layer 'layers.9' has no"),
    "an unknown index": (lambda g, first: {7: g[first]}, "layer 7 has no router"),
    "given twice": (lambda g, first: {**g, 0: g[first]}, "given twice"),
    "too few layers": (lambda g, first: g[first][:, None], "of 1 layers are given"),
    "flat": (lambda g, first: g[first], "where \\(tokens, layers, K\\) is expected"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_name_layer_and_token(mistake):
    change, message = WRONG[mistake]
    balancing = equipoise.balance(tiny("qwen3_moe"), "deepseek")
    with pytest.raises(ValueError, match=message), balancing.replay(wrong(balancing, change)):
        raise AssertionError("it was taken")


def test_experts_that_are_no_integers_are_refused():
    balancing = equipoise.balance(tiny("qwen3_moe"), "deepseek")
    given = {name: rows.float() for name, rows in given_of(balancing).items()}
    with pytest.raises(TypeError, match="experts are integers"), balancing.replay(given):
        pass


@pytest.mark.parametrize(("tokens", "message"), [(35, "routes 36 tokens"), (37, "and routed 36")])
def test_another_number_of_tokens_is_refused(tokens, message):
    model = tiny("qwen3_moe").eval()
    balancing = equipoise.balance(model, "deepseek")
    given = given_of(balancing, tokens=tokens)
    with (
        pytest.raises((ValueError, RuntimeError), match=message),
        torch.no_grad(),
        balancing.replay(given),
    ):
        model(**batch())
    plain = model(**batch()).logits  # and nothing is left behind
    balancing.detach()
    assert torch.equal(model(**batch()).logits, plain)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_routes_live(name, copied):
    model = tiny(name).eval()
    balancing = equipoise.balance(model, "deepseek")
    with torch.no_grad():
        plain = model(**batch()).logits
        with balancing.replay(given_of(balancing)):
            model(**batch())
            twin = copied(model)
        assert torch.equal(twin(**batch()).logits, plain)
        balancing.detach()
        assert torch.equal(model(**batch()).logits, plain)
    equipoise.balance(twin, "deepseek")
    equipoise.balance(model, "deepseek")


def test_with_lora_under_checkpointing():
    peft = pytest.importorskip("peft")
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=2, target_modules=["o_proj"], init_lora_weights=False)
        model = peft.get_peft_model(tiny("deepseek_v3"), config)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        balancing = equipoise.balance(model, "deepseek")
        given = given_of(balancing)
        with balancing.replay(given), balancing.record_experts() as taken:
            loss = forward(model, batch())
        loss.backward()
        assert all(np.array_equal(taken[name], rows) for name, rows in given.items())
        gradients.append(gradients_of(model))
    assert same(*gradients)
