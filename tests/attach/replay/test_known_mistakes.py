"""What implementations of replay got wrong once, each with its test.

mistake                                                test
-----------------------------------------------------  ----------------------------------------
gates gathered from scattered top-K values: zeros,     test_replay: outside_the_chosen_groups
and no gradients                                       test_own_layer_replay: gates_are_its_own
other experts in a recomputation                       test_replay: two_forwards; every family:
                                                       test_replay_of_families: gradients_are
the top-2 of groups is replaced, too                   here: groups_are_its_own
-1 is no expert, and its share is not reported         test_replay: minus_one_routes_live
padding all to expert 0                                here: padding_is_no_expert
layers counted without the dense ones                  here: dense_layers_have_no_experts
prompt and completion shifted by a token               test_engine_formats: prompt_and, last_token
a byte for more than 256 experts                       here: more_than_256_experts
experts of all layers on the device at once            here: one_layer_at_a_time_is_moved
a given expert without score in the trainer            test_score_floor
the bias moves without effect                          test_replay: no_rule_moves
                                                       test_own_layer_replay: the_shift_rests
forced loads that leave devices idle                   test_forced_loads: even_for_every_number
the layers' order of another system                    test_replay: layers_by_index
"""

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attach.replay import choice_exchange, place_in_batch
from tests.attach.own_models import EXPERTS, TOP_K, InGroups, OwnModel, hidden_states
from tests.attach.tools import BY_NAME, LENGTH, ROWS, batch, forward, tiny

pytestmark = pytest.mark.filterwarnings("ignore:forwards whose experts are replayed")
TOKENS = ROWS * LENGTH


class NotesGroups(InGroups):
    """InGroups, which notes the groups it chose."""

    def choose(self, hidden):
        scores = self.gate(hidden).sigmoid()
        worth = scores.unflatten(-1, (3, 2)).topk(2, dim=-1).values.sum(-1)
        self.groups = worth.topk(2, dim=-1).indices
        allowed = torch.zeros(*scores.shape[:-1], 3).scatter(-1, self.groups, 1.0)
        masked = scores.masked_fill(allowed.repeat_interleave(2, -1) == 0, -torch.inf)
        experts = masked.topk(self.top_k, dim=-1).indices
        return scores.gather(-1, experts), experts


def test_groups_are_its_own():
    # groups of 2 experts, of which a token takes 2: their top-2 looks like the choice
    model = OwnModel(NotesGroups).eval()
    balancing = equipoise.balance(model, "deepseek")
    rng = torch.Generator().manual_seed(0)
    given = {
        router.name: torch.rand(120, EXPERTS, generator=rng).argsort(1)[:, :TOP_K]
        for router in balancing.routers
    }
    with torch.no_grad():
        model(hidden_states())
        groups = model.blocks[0].groups
        with balancing.replay(given), balancing.record_experts() as taken:
            model(hidden_states())
    assert torch.equal(model.blocks[0].groups, groups)
    first = balancing.routers[0].name
    assert np.array_equal(taken[first], given[first])
    scores = model.blocks[0].gate(model.embed(hidden_states())).sigmoid().flatten(0, 1)
    gates = model.blocks[0].gates.flatten(0, 1)
    torch.testing.assert_close(gates, scores.gather(1, given[first]).detach())


def test_padding_is_no_expert():
    model, inputs = tiny("qwen3_moe"), batch(padded=True)
    balancing = equipoise.balance(model, "deepseek")
    mask = inputs["attention_mask"]
    sequences = [np.tile([[[1, 2]]], (int(row.sum()), 2, 1)) for row in mask]
    with (
        torch.no_grad(),
        balancing.replay(place_in_batch(sequences, mask)) as replayed,
        balancing.record_experts() as taken,
    ):
        model(**inputs)
    kept = mask.flatten().numpy() == 1
    for layer in taken.layers:
        assert (taken[layer][kept] == [1, 2]).all()
        # padding is routed live, by its own scores, and not reported
        assert len(np.unique(taken[layer][~kept])) > 1
    assert replayed.live_share == 0


def test_dense_layers_have_no_experts():
    config = {"first_k_dense_replace": 1, "num_hidden_layers": 3}
    model = type(BY_NAME["deepseek_v3"])("deepseek_v3", overrides=config).model().eval()
    balancing = equipoise.balance(model, "deepseek")
    names = [router.name for router in balancing.routers]
    assert names == ["model.layers.1.mlp", "model.layers.2.mlp"]
    rng = np.random.default_rng(0)
    every = rng.permuted(np.tile(np.arange(8), (TOKENS, 3, 1)), axis=2)[..., :2]
    every[:, 0] = 255  # what an engine puts into a dense layer means nothing
    for given in (every, {1: every[:, 1], 2: every[:, 2]}):
        with torch.no_grad(), balancing.replay(given), balancing.record_experts() as taken:
            model(**batch())
        assert all(np.array_equal(taken[name], every[:, n + 1]) for n, name in enumerate(names))
    with pytest.raises(ValueError, match="layer 0 has no router"):
        balancing.replay({0: every[:, 0], 1: every[:, 1], 2: every[:, 2]}).__enter__()


@pytest.mark.parametrize(("num_experts", "dtype"), [(256, np.uint8), (300, np.int16)])
def test_more_than_256_experts(num_experts, dtype):
    layer = equipoise.MoE(8, 4, num_experts, 2).eval()
    given = torch.tensor([[num_experts - 1, 0], [num_experts - 2, num_experts - 1]])
    with (
        torch.no_grad(),
        equipoise.replay_experts(layer, {"router": given.numpy()}),
        equipoise.record_experts(layer) as taken,
    ):
        routing = layer(torch.randn(2, 8)).routing
    assert torch.equal(routing.experts, given)
    assert taken["router"].dtype == dtype


def test_one_layer_at_a_time_is_moved(monkeypatch):
    model = tiny("qwen3_moe")
    balancing = equipoise.balance(model, "deepseek")
    moved, to_device = [], choice_exchange.to_device

    def spy(rows, device):
        # nothing of another layer, or of another forward, lies there
        assert all(each.exchange._on_device is None for each in balancing.routers)
        moved.append((rows.shape, rows.dtype))
        return to_device(rows, device)

    monkeypatch.setattr(choice_exchange, "to_device", spy)
    given = {router.name: np.tile([[3, 4]], (2 * TOKENS, 1)) for router in balancing.routers}
    with balancing.replay(given):
        for seed in range(2):
            forward(model, batch(seed)).backward()
    assert moved == [((TOKENS, 2), np.uint8)] * 4
