"""Recording and replay of equipoise's own layers: MoE, Router, LayerBalancer."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import equipoise
from equipoise.attach.replay import place_in_batch
from equipoise.routing.recomputation import in_backward
from tests.ranks import on_ranks

pytestmark = pytest.mark.filterwarnings(
    "ignore:forwards whose experts are replayed", "ignore:a step was skipped"
)
WIDTH, EXPERTS, TOP_K, ROWS, LENGTH = 16, 8, 2, 3, 10
TOKENS = ROWS * LENGTH
TERMS = {"renormalize": True, "scale": 1.5}


class MoEBlock(nn.Module):
    """One equipoise.MoE and a residual."""

    def __init__(self, rule):
        super().__init__()
        self.moe = equipoise.MoE(WIDTH, 8, EXPERTS, TOP_K, balancer=rule, init_std=0.2, **TERMS)
        self.tallies = []

    def forward(self, hidden, mask=None):
        output, routing, tally, *_ = self.moe(hidden, mask)
        self.routing = routing
        if not in_backward():
            self.tallies.append(tally)
        return hidden + output

    def scores(self, hidden):
        return (hidden @ self.moe.router.weight.T).softmax(-1)

    def mix(self, hidden, gates):
        """Every expert on every token, weighted by (..., E) gates."""
        each = [
            self.moe.experts(
                hidden.flatten(0, -2),
                torch.full((hidden[..., 0].numel(), 1), place),
                torch.ones(hidden[..., 0].numel(), 1),
            ).view_as(hidden)
            for place in range(EXPERTS)
        ]
        return (gates.unsqueeze(-1) * torch.stack(each, -2)).sum(-2)


class BalancerBlock(nn.Module):
    """A layer of one's own with a LayerBalancer."""

    def __init__(self, rule):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.ffns = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.balancer = equipoise.LayerBalancer(rule, EXPERTS, TOP_K, **TERMS)

    def forward(self, hidden, mask=None):
        self.routing = self.balancer(self.scores(hidden), mask)
        zeros = hidden.new_zeros(*hidden.shape[:-1], EXPERTS)
        gates = zeros.scatter(-1, self.routing.experts, self.routing.gates)
        return hidden + self.mix(hidden, gates)

    def scores(self, hidden):
        return self.gate(hidden).softmax(-1)

    def mix(self, hidden, gates):
        each = torch.stack([ffn(hidden) for ffn in self.ffns], -2)
        return (gates.unsqueeze(-1) * each).sum(-2)


class OwnModel(nn.Module):
    """Two blocks; `kind` is "none", or of checkpointing."""

    def __init__(self, block, rule="deepseek", kind="none"):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block(rule) for _ in range(2))
        self.kind = kind

    def forward(self, hidden, mask=None):
        hidden = self.embed(hidden)
        for block in self.blocks:
            if self.kind == "none" or not self.training:
                hidden = block(hidden, mask)
            else:
                reentrant = self.kind == "reentrant"
                hidden = checkpoint(block, hidden, mask, use_reentrant=reentrant)
        return hidden

    def layers(self):
        return [each.moe.router if hasattr(each, "moe") else each.balancer for each in self.blocks]

    def step(self):
        if hasattr(self.blocks[0], "moe"):
            for block in self.blocks:
                block.moe.router.balancer.update(sum(block.tallies))
                block.tallies = []
        else:
            equipoise.step(self)


BLOCKS = [MoEBlock, BalancerBlock]
both = pytest.mark.parametrize("block", BLOCKS)
NAMES = {MoEBlock: "blocks.{}.moe.router", BalancerBlock: "blocks.{}.balancer"}


def states(seed=0):
    return torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))


def given_of(block, seed=0, tokens=TOKENS):
    rng = torch.Generator().manual_seed(seed)
    return {
        NAMES[block].format(place): torch.rand(tokens, EXPERTS, generator=rng).argsort(1)[:, :TOP_K]
        for place in range(2)
    }


def gradients_of(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def same(first, second):
    assert first
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


@both
def test_its_own_recording_gives_its_own_output(block):
    model, hidden = OwnModel(block).eval(), states()
    for layer in model.layers():
        layer.balancer.shift.copy_(0.2 * torch.randn(EXPERTS))
    with torch.no_grad():
        plain = model(hidden)
        with equipoise.record_experts(model, margins=True) as recording:
            assert torch.equal(model(hidden), plain)
        with equipoise.replay_experts(model, recording) as replayed:
            assert torch.equal(model(hidden), plain)
        by_index = dict(enumerate(recording.experts.values()))
        with equipoise.replay_experts(model, by_index):
            assert torch.equal(model(hidden), plain)
        assert torch.equal(model(hidden), plain)
    assert recording.layers == [NAMES[block].format(place) for place in range(2)]
    first, embedded = recording.layers[0], model.embed(hidden)
    ranked = model.blocks[0].scores(embedded) + model.layers()[0].balancer.shift
    best = ranked.flatten(0, 1).detach().sort(1, descending=True).values
    torch.testing.assert_close(
        torch.from_numpy(recording.margins[first]), best[:, TOP_K - 1] - best[:, TOP_K]
    )
    assert (replayed.live_share, replayed.refused_share) == (0.0, 0.0)


def by_hand(model, hidden, given):
    """The slow twin: every expert on every token, gates gathered from all scores."""
    hidden = model.embed(hidden)
    for block, rows in zip(model.blocks, given.values()):
        scores = block.scores(hidden)
        chosen = torch.zeros_like(scores).scatter(-1, rows.view(ROWS, LENGTH, TOP_K), 1.0)
        gates = scores * chosen / (scores * chosen).sum(-1, keepdim=True) * TERMS["scale"]
        hidden = hidden + block.mix(hidden, gates)
    return hidden


@both
def test_gates_are_its_own_scores_and_carry_gradients(block):
    model, given = OwnModel(block), given_of(block)
    with equipoise.replay_experts(model, given):
        output = model(states())
    output.square().mean().backward()
    gradients = gradients_of(model)
    wanted = by_hand(model, states(), given)
    torch.testing.assert_close(output, wanted)
    wanted.square().mean().backward()
    for name, value in gradients_of(model).items():
        torch.testing.assert_close(gradients[name], value, rtol=1e-4, atol=1e-6)
    loads = [
        np.bincount(rows.numpy().ravel(), minlength=EXPERTS).tolist() for rows in given.values()
    ]
    assert [each.routing.loads.tolist() for each in model.blocks] == loads


@both
@pytest.mark.parametrize("kind", ["reentrant", "other"])
def test_under_checkpointing_and_accumulation(block, kind):
    givens = given_of(block, 1), given_of(block, 2)
    plain, model = OwnModel(block), OwnModel(block, kind=kind)
    wanted = []
    for seed, given in enumerate(givens):
        with equipoise.replay_experts(plain, given):
            plain(states(seed)).square().mean().backward()
        wanted.append(gradients_of(plain))
    outputs = []
    for seed, given in enumerate(givens):
        with equipoise.replay_experts(model, given):
            outputs.append(model(states(seed)))
    live = model(states(2))
    for output, expected in zip(outputs, wanted):
        output.square().mean().backward()  # the replay has ended
        assert same(gradients_of(model), expected)
    live.square().mean().backward()
    model.step()


def replay_steps(model, given, steps):
    for seed in range(steps):
        with equipoise.replay_experts(model, given):
            output = model(states(seed))
        output.square().mean().backward()
        model.step()


@both
@pytest.mark.parametrize("kind", ["none", "reentrant", "other"])
@pytest.mark.parametrize("rule", ["deepseek", "curvature"])
def test_the_shift_rests_and_says_so(block, kind, rule):
    model = OwnModel(block, rule, kind)
    for seed in range(2):  # until it has moments
        model(states(seed)).square().mean().backward()
        model.step()
    before = [copy.deepcopy(layer.balancer.state_dict()) for layer in model.layers()]
    with pytest.warns(UserWarning, match="leave the shift where it is") as warned:
        replay_steps(model, given_of(block), 2)
    assert len([each for each in warned if "leave the shift" in str(each.message)]) == 2
    for layer, old in zip(model.layers(), before):
        new = layer.balancer.state_dict()
        assert int(new.pop("steps")) == int(old.pop("steps")) + 2
        assert all(torch.equal(new[name], old[name]) for name in old)
    model(states()).square().mean().backward()
    model.step()
    assert not torch.equal(model.layers()[0].balancer.shift, before[0]["shift"])


@both
@pytest.mark.parametrize("kind", ["none", "reentrant", "other"])
def test_its_own_choice_is_tallied_on_request(block, kind):
    model, twin = OwnModel(block, kind=kind), OwnModel(block)
    mask = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    mask[0, :3] = mask[1, 8:] = True
    with equipoise.record_experts(twin) as own:
        twin(states(), mask)
    with equipoise.replay_experts(model, given_of(block), tally="own"):
        output = model(states(), mask)
    output.square().mean().backward()
    first = model.layers()[0]
    counted = sum(model.blocks[0].tallies) if block is MoEBlock else first.counted
    rows = own[own.layers[0]][~mask.flatten().numpy()]
    assert counted.loads.tolist() == np.bincount(rows.ravel(), minlength=EXPERTS).tolist()
    model.step()
    assert first.balancer.shift.any()


@both
def test_padding_left_and_right_and_live_tokens(block):
    """Three sequences of an engine, padded to a batch; the last token of each is unknown."""
    model = OwnModel(block).eval()
    lengths, rng = (10, 6, 8), np.random.default_rng(0)
    mask = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    mask[1, :4] = mask[2, 8:] = 0  # left, and right
    sequences = []
    for length in lengths:
        rows = np.stack(
            [rng.permuted(np.tile(np.arange(EXPERTS), (length, 1)), axis=1)[:, :TOP_K]] * 2, 1
        )
        rows[-1] = -1
        sequences.append(rows)
    array = place_in_batch(sequences, mask)
    with torch.no_grad():
        with equipoise.record_experts(model) as own:
            model(states(), mask == 0)
        with (
            equipoise.replay_experts(model, array) as replayed,
            equipoise.record_experts(model) as taken,
        ):
            model(states(), mask == 0)
    first = own.layers[0]
    flat = array.reshape(TOKENS, 2, TOP_K)[:, 0]
    live = flat[:, 0] == -1
    assert np.array_equal(taken[first], np.where(live[:, None], own[first], flat))
    assert replayed.live_share == pytest.approx(3 / 24)
    loads = np.bincount(
        taken[taken.layers[1]][mask.flatten().numpy() == 1].ravel(), minlength=EXPERTS
    )
    assert model.blocks[1].routing.loads.tolist() == loads.tolist()


@both
def test_floor_and_force(block):
    model = OwnModel(block).eval()
    with torch.no_grad(), equipoise.replay_experts(model, given_of(block), floor=1.0) as replayed:
        model(states())
    assert 0.1 < replayed.refused_share < 1
    with torch.no_grad(), equipoise.replay_experts(model, force="balanced", devices=4):
        model(states())
    assert sorted(model.blocks[0].routing.loads.tolist()) == [7, 7, 7, 7, 8, 8, 8, 8]
    with torch.no_grad(), equipoise.replay_experts(model, force=[3, 1, 1, 1, 0, 0, 0, 0]):
        model(states())
    assert model.blocks[1].routing.loads.tolist() == [30, 10, 10, 10, 0, 0, 0, 0]


@both
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_routes_live(block, copied):
    model = OwnModel(block).eval()
    with torch.no_grad():
        plain = model(states())
        with equipoise.replay_experts(model, given_of(block)):
            assert not torch.equal(model(states()), plain)
            model.blocks[0].routing = model.blocks[1].routing = None
            twin = copied(model)
            assert torch.equal(twin(states()), plain)
    assert all(layer.exchange is None for layer in twin.layers())


@both
def test_what_is_kept_for_recomputation_goes_with_the_step(block):
    model = OwnModel(block)
    for _ in range(3):
        with equipoise.replay_experts(model, given_of(block)):
            output = model(states())
        output.square().mean().backward()
        model.step()
        with torch.no_grad():
            model.eval()(states())
        model.train()
        assert all(len(layer.exchange.choices._kept) == 0 for layer in model.layers())
    if block is BalancerBlock:
        with equipoise.replay_experts(model, given_of(block)):
            model(states())
        assert len(model.layers()[0].exchange.choices._kept) == 1
        equipoise.drop(model)
        assert len(model.layers()[0].exchange.choices._kept) == 0


def test_a_backward_after_the_update_is_refused():
    model = OwnModel(MoEBlock, kind="other")
    with equipoise.replay_experts(model, given_of(MoEBlock)):
        output = model(states())
    model.step()
    with pytest.raises(RuntimeError, match=r"router is recomputed .* ranked its 30 tokens so"):
        output.sum().backward()


def test_a_look_ahead_sees_nothing_of_a_replay():
    router = equipoise.Router(
        WIDTH, equipoise.balancer("quantile", EXPERTS, top_k=TOP_K), look_ahead=8
    )
    with equipoise.replay_experts(router, {"Router": torch.arange(60).view(30, 2) % EXPERTS}):
        routed = router(states())
        assert len(routed.sample.hidden) == 0
        before = router.balancer.shift.clone()
        router.balancer.update(router.fresh_tally(routed.sample))
    assert torch.equal(router.balancer.shift, before)
    assert len(router(states()).sample.hidden) > 0


def test_the_papers_model_recomputed():
    from equipoise.model import MODELS

    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, MODELS["tiny"].vocab_size, (2, 16), generator=rng)
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = equipoise.DeepSeekMoE(MODELS["tiny"], recompute=recompute)
        layers = model.moe_layers
        names = [f"{name}.feed_forward.router" for name in layers]
        sizes = [layer.router.balancer for layer in layers.values()]
        rng.manual_seed(1)
        given = {
            name: torch.rand(32, size.num_experts, generator=rng).argsort(1)[:, : size.top_k]
            for name, size in zip(names, sizes)
        }
        with equipoise.replay_experts(model, given), equipoise.record_experts(model) as taken:
            output = model(tokens, tokens)
        assert all(np.array_equal(taken[name], given[name]) for name in names)
        assert all(int(tally.loads.sum()) == 0 for tally in output.tallies)
        output.loss.backward()
        gradients.append(gradients_of(model))
    assert same(*gradients)


@both
def test_experts_without_any_score_are_routed_live(block):
    """Softmax gives one expert all, and exactly 0 to most: gates would be 0 / 0."""
    model, mask = OwnModel(block), torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    mask[0] = True
    first = model.blocks[0].moe.router if block is MoEBlock else model.blocks[0].gate
    first.weight.data.mul_(1e4)
    given = given_of(block)
    with equipoise.replay_experts(model, given) as replayed:
        output = model(states(), mask)
    scores = model.blocks[0].scores(model.embed(states())).flatten(0, 1)
    lost = scores.gather(1, given[NAMES[block].format(0)]).sum(1)[LENGTH:] == 0
    assert 1 < lost.sum() < 20
    shares = replayed.refused_share_by_layer
    assert shares[NAMES[block].format(0)] == pytest.approx(lost.float().mean().item())
    assert shares[NAMES[block].format(1)] == 0
    output.square().mean().backward()
    assert all(value.isfinite().all() for value in gradients_of(model).values())


@both
def test_with_lora_under_checkpointing(block):
    peft = pytest.importorskip("peft")
    gradients = []
    for kind in ("none", "other"):
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, target_modules=["embed"], init_lora_weights=False)
        model = peft.get_peft_model(OwnModel(block, kind=kind), config)
        with equipoise.replay_experts(model, given_of(block)):
            output = model(states())
        output.square().mean().backward()
        gradients.append(gradients_of(model))
    assert any("lora" in name for name in gradients[0])
    assert same(*gradients)


def half(rank):
    return slice(0, 2) if rank == 0 else slice(2, 3)


def replay_on_rank(rank):
    """Rows 0 and 1 to rank 0, row 2 to rank 1, each with its own experts."""
    warnings.simplefilter("ignore")
    model, given = OwnModel(BalancerBlock, kind="other"), given_of(BalancerBlock)
    wrapped = nn.parallel.DistributedDataParallel(model)
    mine = {name: rows.view(ROWS, LENGTH, TOP_K)[half(rank)] for name, rows in given.items()}
    alone = OwnModel(BalancerBlock)
    with equipoise.replay_experts(alone, given, tally="own"):
        whole = alone(states())
    whole.square().sum().backward()
    for tally in ("own", "none"):
        with equipoise.replay_experts(wrapped, mine, tally=tally):
            output = wrapped(states()[half(rank)])
        assert torch.equal(output, whole[half(rank)])
        # DDP takes the mean of the gradients of the ranks
        (2 * output.square().sum()).backward()
        for (name, one), other in zip(model.named_parameters(), alone.parameters()):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)
        model.zero_grad()
        loads = equipoise.step(wrapped).loads["module.blocks.0.balancer"]
        counted = alone.layers()[0].counted.loads
        assert torch.equal(loads, counted if tally == "own" else torch.zeros_like(counted))
    assert model.layers()[0].balancer.shift.any()


def test_two_ranks_replay_like_one(tmp_path):
    on_ranks(replay_on_rank, 2, tmp_path)


def test_what_cannot_be_replayed_is_refused():
    with pytest.raises(ValueError, match=r"Linear holds no MoE.*balancing\.replay"):
        equipoise.record_experts(nn.Linear(2, 2))
    model = OwnModel(MoEBlock)
    with pytest.raises(ValueError, match="give one of them"):
        equipoise.replay_experts(model)
    given = dict(list(given_of(MoEBlock).items())[:1])
    with pytest.raises(ValueError, match=r"given for blocks\.1\.moe\.router"):
        equipoise.replay_experts(model, given).__enter__()
    varying = OwnModel(BalancerBlock, "expert_choice")
    with (
        pytest.raises(ValueError, match="expert choice, in training"),
        equipoise.record_experts(varying),
    ):
        varying(states())


@pytest.mark.slow
@both
def test_compiled_layers_replay_between_their_graphs(block):
    model, given = OwnModel(block), given_of(block)
    compiled = torch.compile(model)
    plain = compiled(states())
    with equipoise.replay_experts(model, given):
        torch.testing.assert_close(compiled(states()), by_hand(model, states(), given))
    torch.testing.assert_close(compiled(states()), plain)


@pytest.mark.parametrize("padded", [False, True])
def test_margins_of_a_balancer_that_follows_sequences(padded):
    """They are measured in the scores it chose by, which depend on the tokens before."""
    torch.manual_seed(0)
    moe = equipoise.MoE(WIDTH, 8, EXPERTS, TOP_K, balancer="moving_quantile", init_std=0.5)
    hidden = torch.randn(ROWS, LENGTH, WIDTH)
    mask = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    mask[:, 7:] = padded
    with equipoise.record_experts(moe, margins=True) as recorded:
        routed = moe(hidden, mask)[1]
    scores = (hidden @ moe.router.weight.T).softmax(-1)
    ranked = moe.router.balancer.adjust(scores, mask).flatten(0, 1).sort(descending=True).values
    margins = torch.as_tensor(recorded.margins["router"])
    expected = ranked[:, TOP_K - 1] - ranked[:, TOP_K]
    kept = ~mask.flatten()
    torch.testing.assert_close(margins[kept].float(), expected[kept].detach(), atol=1e-6, rtol=1e-4)
    with equipoise.replay_experts(moe, recorded):
        assert torch.equal(moe(hidden, mask)[1].experts[kept], routed.experts[kept])
