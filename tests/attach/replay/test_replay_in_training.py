"""Replay in attached models as training loops run them: own layers recomputed, packed rows, two
ranks.
"""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import equipoise
from equipoise.attach.replay import pack_sequences
from tests.attach.own_models import EXPERTS, FOUND, TOP_K, Noisy, OwnModel, hidden_states
from tests.attach.test_ranks import half
from tests.attach.tools import LENGTH, ROWS, batch, forward, tiny
from tests.ranks import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:forwards whose experts are replayed")


class Recomputed(nn.Module):
    """Runs every block of a model of one's own under checkpointing."""

    def __init__(self, model, kind):
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, hidden):
        hidden = self.model.embed(hidden)
        for block in self.model.blocks:
            if self.kind == "none":
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self.kind == "reentrant")
        return hidden


def random_rows(routers, tokens, seed):
    rng = torch.Generator().manual_seed(seed)
    return {
        router.name: torch.rand(tokens, router.found.spec.num_experts, generator=rng).argsort(1)[
            :, : router.found.spec.top_k
        ]
        for router in routers
    }


@pytest.mark.parametrize("layer", FOUND, ids=lambda layer: layer.__name__)
def test_layers_of_ones_own_recomputed_and_accumulated(layer):
    gradients = []
    for kind in ("none", "reentrant", "other"):
        model = Recomputed(OwnModel(layer), kind)
        balancing = equipoise.balance(model, "deepseek")
        torch.manual_seed(0)
        outputs = []
        for seed in range(2):
            with balancing.replay(random_rows(balancing.routers, 120, seed)):
                outputs.append(model(hidden_states(seed)))
        for output in outputs:
            output.square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        balancing.step()
        assert all(not router.balancer.shift.any() for router in balancing.routers)
    for other in gradients[1:]:
        for name, value in gradients[0].items():
            assert value is not None or layer is not Noisy, name
            assert value is None or torch.equal(value, other[name]), name


def test_named_routers_are_replayed():
    model = OwnModel(FOUND[0]).eval()
    balancing = equipoise.balance(model, "deepseek", routers="blocks.1")
    given = random_rows(balancing.routers, 120, 0)
    assert list(given) == ["blocks.1"]
    with torch.no_grad(), balancing.replay(given), balancing.record_experts() as taken:
        model(hidden_states())
    assert taken.layers == ["blocks.1"]
    counts = np.bincount(given["blocks.1"].numpy().ravel(), minlength=EXPERTS).tolist()
    assert model.received()[1] == counts
    assert sum(counts) == 120 * TOP_K


def test_a_packed_row_takes_its_sequences_one_after_another():
    """Three sequences in one row, without a mask: positions begin again."""
    model = tiny("qwen3_moe").eval()
    balancing = equipoise.balance(model, "deepseek")
    lengths, rng = (14, 9, 11), np.random.default_rng(0)
    sequences = [
        rng.permuted(np.tile(np.arange(8), (length, 2, 1)), axis=2)[..., :2] for length in lengths
    ]
    ids = batch()["input_ids"].reshape(1, -1)
    positions = torch.cat([torch.arange(length) for length in (*lengths, 2)])[None]
    with (
        torch.no_grad(),
        balancing.replay(pack_sequences(sequences, ROWS * LENGTH)) as replayed,
        balancing.record_experts() as taken,
    ):
        model(input_ids=ids, position_ids=positions, use_cache=False)
    for place, layer in enumerate(taken.layers):
        assert np.array_equal(taken[layer][:34], np.concatenate(sequences)[:, place])
    # two tokens after the last sequence; positions tell no padding here
    assert replayed.live_share == pytest.approx(2 / 36)


def replay_on_rank(rank):
    """Rows 0 and 1 to rank 0, row 2 to rank 1, each with its own experts."""
    warnings.simplefilter("ignore")
    for name in ("deepseek_v3", "qwen3_moe"):
        inputs = batch(padded=True)
        model, alone = tiny(name), tiny(name)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        balancing = equipoise.balance(wrapped, "deepseek")
        twin = equipoise.balance(alone, "deepseek", group=torch.distributed.new_group([0, 1]))
        given = random_rows(balancing.routers, ROWS * LENGTH, 0)
        mine = {
            layer: rows.view(ROWS, LENGTH, 2)[slice(0, 2) if rank == 0 else slice(2, 3)]
            for layer, rows in given.items()
        }
        with torch.no_grad(), twin.replay(given), twin.record_experts() as own:
            whole = alone(**inputs).logits
        with torch.no_grad(), balancing.replay(mine) as replayed:
            part = model(**half(inputs, rank)).logits
        torch.testing.assert_close(part, whole[:2] if rank == 0 else whole[2:])
        assert replayed.live_share == 0
        with balancing.replay(mine, tally="own"):
            loss = forward(wrapped, half(inputs, rank))
        loss.backward()
        balancing.step()
        loads = balancing.last_tallies[balancing.routers[0].name].loads
        kept = inputs["attention_mask"].flatten().numpy() == 1
        assert int(loads.sum()) == 2 * int(kept.sum())
        assert len(own.layers) == len(balancing.routers)
        before = balancing.routers[0].applied_shift.clone()
        assert before.any()
        with balancing.replay(mine):
            loss = forward(wrapped, half(inputs, rank))
        loss.backward()
        balancing.step()
        assert torch.equal(balancing.routers[0].applied_shift, before)


@pytest.mark.slow
def test_two_ranks_replay_their_own_tokens(tmp_path):
    on_ranks(replay_on_rank, 2, tmp_path)
