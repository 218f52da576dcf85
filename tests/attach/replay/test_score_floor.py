"""The floor of a replay: given experts that the router scores too low are routed live, and only
those.
"""

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import equipoise
from equipoise.attach.replay.score_floor import apply_floor
from tests.attach.own_models import FOUND, OwnModel, hidden_states
from tests.attach.tools import batch, forward, tiny

pytestmark = pytest.mark.filterwarnings("ignore:forwards whose experts are replayed")


def by_hand(given, own, scores, floor, logits):
    """The rule of score_floor.py, token by token."""
    taken, refused = [], []
    for given_row, own_row, score_row in zip(given.tolist(), own.tolist(), scores.tolist()):
        values = np.exp(score_row) if logits else np.array(score_row)
        weakest = min(values[expert] for expert in own_row)
        low = [values[expert] < floor * weakest for expert in given_row]
        kept = [expert for expert, is_low in zip(given_row, low) if not is_low]
        spare = [expert for expert in own_row if expert not in kept]
        taken.append([spare.pop(0) if is_low else e for e, is_low in zip(given_row, low)])
        refused.append(low)
    return torch.tensor(taken), torch.tensor(refused)


@settings(max_examples=60, deadline=None)
@drawn(
    seed=st.integers(0, 2**31),
    num_experts=st.integers(1, 9),
    floor=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    logits=st.booleans(),
    data=st.data(),
)
def test_the_rule_token_by_token(seed, num_experts, floor, logits, data):
    top_k = data.draw(st.integers(1, num_experts))
    rng = torch.Generator().manual_seed(seed)
    # sixteenths: products with the floors are exact, and ties are met
    scores = torch.randint(1, 17, (20, num_experts), generator=rng) / 16
    scores = scores - 2 if logits else scores
    shifted = scores + 0.3 * torch.rand(num_experts, generator=rng)
    own = shifted.argsort(dim=1, descending=True, stable=True)[:, :top_k]
    given = torch.rand(20, num_experts, generator=rng).argsort(1)[:, :top_k]
    experts, refused = apply_floor(given, own, scores, floor, None if logits else "sigmoid")
    taken, low = by_hand(given, own, scores.double(), floor, logits)
    if logits:
        # exp and log round: only ties with the floor may be told otherwise
        values = scores.double().exp()
        edge = values.gather(1, given) / values.gather(1, own).amin(1, keepdim=True)
        clear = ((edge - floor).abs() > 1e-5).all(1)
        experts, refused, taken, low = experts[clear], refused[clear], taken[clear], low[clear]
    assert torch.equal(refused, low)
    assert torch.equal(experts, taken)
    assert all(len(set(row)) == top_k for row in experts.tolist())
    if floor == 0:
        assert not refused.any()


def test_own_experts_are_never_below():
    scores = torch.rand(50, 8).softmax(-1)
    own = scores.topk(3).indices
    experts, refused = apply_floor(own.flip(1), own, scores, 1.0, "softmax")
    assert torch.equal(experts, own.flip(1))
    assert not refused.any()


def scores_seen(router, into):
    """The unshifted scores of every call of a deepseek_v3 or qwen3_moe gate."""

    def keep(module, args, output):
        logits = output[0].detach().float()
        into.append(logits.sigmoid() if router.found.bias is not None else logits.softmax(-1))

    router.found.gate.register_forward_hook(keep)


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_moe"])
def test_in_a_model_under_recomputation(name):
    """Against the slow twin: the rule by hand on the scores that the gate returned."""
    gradients, inputs = [], batch(padded=True)
    for reentrant in (None, False, True):
        model = tiny(name)
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        balancing = equipoise.balance(model, "deepseek")
        first = balancing.routers[0]
        first.found.gate.weight.data.mul_(20.0)
        first.shift.set(0.02 * torch.arange(8.0))
        with torch.no_grad(), balancing.record_experts() as own:
            model(**inputs)
        rng, scores = torch.Generator().manual_seed(1), []
        rows = {layer: torch.rand(36, 8, generator=rng).argsort(1)[:, :2] for layer in own.layers}
        rows[first.name][:5] = -1
        scores_seen(first, scores)
        with (
            balancing.replay(rows, floor=0.9) as replayed,
            balancing.record_experts() as taken,
        ):
            loss = forward(model, inputs)
        mine = torch.from_numpy(own[first.name]).long()
        live = rows[first.name][:, :1] == -1
        wanted, low = by_hand(rows[first.name].where(~live, mine), mine, scores[0], 0.9, False)
        assert 5 < low.sum() < 60
        assert np.array_equal(taken[first.name], wanted)
        kept = inputs["attention_mask"].flatten() == 1
        share = (low & kept[:, None]).sum() / (2 * (kept & ~live[:, 0]).sum())
        assert replayed.refused_share_by_layer[first.name] == pytest.approx(float(share))
        assert 0 < replayed.refused_share < 1
        assert replayed.live_share_by_layer[first.name] == 5 / int(kept.sum())
        loss.backward()
        gradients.append(first.found.gate.weight.grad)
    assert gradients[0].isfinite().all()
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


def test_a_recomputation_takes_what_was_settled_and_not_what_it_scores_now():
    # scores move before the backward pass, but not the router's own order
    model = tiny("qwen3_moe")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    balancing = equipoise.balance(model, "deepseek")
    with torch.no_grad(), balancing.record_experts() as own:
        model(**batch())
    given = {layer: 7 - rows.astype(int) for layer, rows in own.experts.items()}
    with balancing.replay(given, floor=0.5), balancing.record_experts() as taken:
        loss = forward(model, batch())
    seen = []
    for router in balancing.routers:
        router.found.experts.register_forward_pre_hook(lambda _, args: seen.append(args[1].clone()))
        router.found.gate.weight.data.mul_(3.0)  # softmax is sharper: more would be refused
    loss.backward()
    last, first = taken.layers[1], taken.layers[0]
    assert torch.equal(seen[0].long(), torch.from_numpy(taken[last]).long())
    assert torch.equal(seen[1].long(), torch.from_numpy(taken[first]).long())


@pytest.mark.parametrize("layer", FOUND, ids=lambda layer: layer.__name__)
def test_layers_of_ones_own(layer):
    model, hidden = OwnModel(layer).eval(), hidden_states()
    balancing = equipoise.balance(model, "deepseek")
    rng = torch.Generator().manual_seed(0)
    spec = balancing.routers[0].found.spec
    rows = {
        router.name: torch.rand(120, spec.num_experts, generator=rng).argsort(1)[:, : spec.top_k]
        for router in balancing.routers
    }
    with (
        torch.no_grad(),
        balancing.replay(rows, floor=1.0) as replayed,
        balancing.record_experts() as taken,
    ):
        model(hidden)
    assert 0 < replayed.refused_share < 1
    counts = [np.bincount(taken[name].ravel(), minlength=6).tolist() for name in taken.layers]
    assert model.received() == counts


@pytest.mark.parametrize("floor", [-0.1, 1.5, True, "high"])
def test_what_is_no_share_is_refused(floor):
    balancing = equipoise.balance(tiny("qwen3_moe"), "deepseek")
    with pytest.raises(ValueError, match="floor is a share"):
        balancing.replay({}, floor=floor).__enter__()


def test_experts_without_any_score_are_routed_live():
    """qwen3_moe divides gates by their sum: 0 / 0 where softmax gives the given experts nothing."""
    model = tiny("qwen3_moe")
    balancing = equipoise.balance(model, "deepseek")
    for router in balancing.routers:
        router.found.gate.weight.data.mul_(1e4)
    rows = {router.name: torch.tensor([[0, 1]]).repeat(36, 1) for router in balancing.routers}
    with balancing.replay(rows) as replayed, balancing.record_experts() as taken:
        loss = forward(model, batch())
    assert 0 < replayed.refused_share < 1
    changed = (taken[taken.layers[0]] != rows[taken.layers[0]].numpy()).any(1).mean()
    assert 0 < changed <= replayed.refused_share_by_layer[taken.layers[0]]
    loss.backward()
    assert all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)
