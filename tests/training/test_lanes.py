"""Parts of a batch side by side: the same training as the whole, and the same every time."""

import dataclasses
import signal
from pathlib import Path

import pytest
import torch

from equipoise.balancing import method_specs
from equipoise.training import preset, train
from equipoise.training.data.corpus import prepare_corpus
from equipoise.training.lanes import Lanes, choose_lane_count
from equipoise.training.loop import TrainingRun
from equipoise.training.ranks import World
from equipoise.training.stopping import Stopped, StopSignals
from equipoise.training.trainer import Trainer
from tests.training.micro import rows, without_times

CPU = World(0, 1, torch.device("cpu"))
CUTTABLE = {spec.name: spec.make(8, 2).sequences_are_independent for spec in method_specs()}
TOGETHER = [name for name, cuttable in CUTTABLE.items() if not cuttable]
APART = [name for name, cuttable in CUTTABLE.items() if cuttable]


def trainer(config, **changes):
    config = dataclasses.replace(config, **changes)
    return Trainer(
        config,
        prepare_corpus(config.data, vocab_size=config.model.vocab_size, tokenizer=config.tokenizer),
        CPU,
    )


def gradients(made):
    made._forward_backward(1, False)
    return {name: weight.grad.clone() for name, weight in made.net.named_parameters()}


@pytest.fixture
def four_threads():
    """As if there were four: the tests have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("batch", "lanes"), [(4, 2), (5, 2), (5, 3), (4, 4)])
def test_gradients_are_those_of_the_whole_batch(micro, batch, lanes):
    one, other = (gradients(trainer(micro(batch_size=batch), lanes=each)) for each in (1, lanes))
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("balancer", APART)
def test_choices_are_those_of_the_whole_batch(micro, tmp_path, balancer):
    whole, parts = (
        micro(balancer=balancer, out=str(tmp_path / str(lanes)), lanes=lanes) for lanes in (1, 2)
    )
    train(whole)
    train(parts)
    pairs = list(zip(rows(whole, "train"), rows(parts, "train"), strict=True))
    assert pairs[0][0]["layers"] == pairs[0][1]["layers"]  # exactly the same loads
    for one, other in pairs:
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.parametrize("balancer", APART)
def test_tallies_are_those_of_the_whole_batch(micro, balancer):
    """With so many tokens that curvature looks at every eighth only."""
    model = {"sequence_length": 512, "num_experts": 8, "top_k": 4}
    changes = {"balancer": balancer, "batch_size": 2, "model": model, "validation_sequences": 1}
    one, other = (
        trainer(micro(**changes), lanes=lanes)._forward_backward(1, False)[0][0] for lanes in (1, 2)
    )
    for tally, same in zip(one.tallies, other.tallies, strict=True):
        assert torch.equal(tally.loads, same.loads)
        for name, part in tally.parts.items():
            assert same.parts[name].sum() == part.sum()
            assert (
                same.parts[name] - part
            ).abs().sum() <= 1e-3 * part.sum()  # an edge of a bin, missed by rounding


def test_several_micro_batches_too(micro, tmp_path):
    whole, parts = (
        micro(out=str(tmp_path / "a")),
        micro(out=str(tmp_path / "b"), micro_batch_size=2, lanes=2),
    )
    train(whole)
    train(parts)
    for one, other in zip(rows(whole, "train"), rows(parts, "train"), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert other["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-3)


def test_every_run_is_the_same(micro, tmp_path):
    one, other = (micro(out=str(tmp_path / name), lanes=2) for name in "ab")
    assert without_times(train(one)) == without_times(train(other))
    assert rows(one) == rows(other)


def test_resuming_is_exact(micro, tmp_path):
    unbroken, broken = (micro(out=str(tmp_path / name), lanes=2, steps=6) for name in "ab")
    train(unbroken)
    with StopSignals() as signals:
        run = TrainingRun(Path(broken.out), trainer(broken), signals)
        run.start()
        signals.received = signal.SIGTERM
        with pytest.raises(Stopped, match="step 1 of 6"):
            run.run_steps()
        run.close()
    train(dataclasses.replace(broken, resume=True))
    assert rows(broken) == rows(unbroken)


def test_recomputing_changes_nothing(micro, tmp_path):
    plain, other = (
        micro(out=str(tmp_path / str(each)), lanes=2, recompute=each) for each in (False, True)
    )
    train(plain)
    train(other)
    assert rows(plain, "train") == rows(other, "train")


def test_scores_are_those_of_the_whole_forward_in_its_order(micro):
    one, other = (trainer(micro(), lanes=lanes).step(1, keep_scores=True) for lanes in (1, 2))
    for layer, same in zip(one.layers, other.layers, strict=True):
        assert layer.scores.shape == (4 * 16, 8)
        torch.testing.assert_close(same.scores, layer.scores)


def test_a_forward_in_parts_is_one_forward(micro):
    made = trainer(micro(), lanes=2)
    outputs, _ = made._forward_backward(1, False)
    for tally in outputs[0].tallies:
        assert torch.equal(tally.forwards, tally.loads.unsqueeze(0))


@pytest.mark.parametrize("look_ahead", [16, 7])
def test_looking_ahead_sees_no_more_tokens(micro, look_ahead):
    """Of 64 tokens every fourth, in halves too; 7 become 4 of each half."""
    one, other = (
        trainer(micro(look_ahead=look_ahead), lanes=lanes)._forward_backward(1, False)[0]
        for lanes in (1, 2)
    )
    for sample, same in zip(one[0].samples, other[0].samples, strict=True):
        assert len(same.hidden) == {16: 16, 7: 8}[look_ahead]
        if look_ahead == 16:
            torch.testing.assert_close(same.hidden, sample.hidden)


def test_lanes_share_weights_and_balancers_but_not_gradients(micro):
    net = trainer(micro()).net
    lanes = Lanes(net, net, 2)
    ours, theirs = lanes.nets
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one is not other
        assert one.data_ptr() == other.data_ptr()
        assert other.requires_grad
    for one, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert one is other
    assert [b.router.balancer for b in ours.moe_layers.values()] == [
        b.router.balancer for b in theirs.moe_layers.values()
    ]


def test_threads_are_shared_out_and_ours_stay(micro, four_threads):
    net = trainer(micro(), lanes=1).net
    lanes = Lanes(net, net, 2)

    def threads_used():
        torch.ones(100_000).sum()
        return torch.get_num_threads()

    assert [thread.submit(threads_used).result() for thread in lanes.threads] == [2, 2]
    assert torch.get_num_threads() == 4


def test_an_error_in_a_lane_is_reported_when_all_have_ended(micro):
    lanes = trainer(micro(), lanes=2).lanes
    ended = []

    def work(model, tokens, targets, share):
        if model is lanes.models[0]:
            raise IndexError("no such token")
        ended.append(share)

    with pytest.raises(IndexError, match="no such token"):
        lanes.run(work, torch.zeros(4, 16), torch.zeros(4, 16), 1.0)
    assert ended == [0.5]


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 2), (3, 1), (4, 2)])
def test_two_lanes_by_default_where_threads_can_be_shared(micro, four_threads, threads, expected):
    torch.set_num_threads(threads)
    made = trainer(micro())
    assert len(made.lanes.models) == expected


@pytest.mark.parametrize("balancer", TOGETHER)
def test_not_where_tokens_are_judged_together(micro, four_threads, balancer):
    assert len(trainer(micro(balancer=balancer)).lanes.models) == 1
    with pytest.raises(ValueError, match=f"lanes = 2 .*{balancer!r} looks at all tokens"):
        trainer(micro(balancer=balancer, lanes=2))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"batch_size": 1}, "only 1 sequence"),
        ({"micro_batch_size": 1}, "only 1 sequence"),
        ({"compile": True}, "compiled layers"),
    ],
    ids=str,
)
def test_what_is_asked_for_and_impossible_is_refused(micro, changes, why):
    with pytest.raises(ValueError, match=f"lanes = 2 is impossible: .*{why}"):
        trainer(micro(lanes=2, **changes))


@pytest.mark.parametrize(
    ("world", "why"),
    [(World(0, 2, CPU.device), "2 ranks"), (World(0, 1, torch.device("cuda")), "not for cuda")],
)
def test_other_worlds_have_one(micro, world, why):
    assert choose_lane_count(micro(), world) == 1
    with pytest.raises(ValueError, match=why):
        choose_lane_count(micro(lanes=2), world)


def test_no_lane_is_too_few():
    with pytest.raises(ValueError, match="lanes must be at least 1"):
        preset("tiny", lanes=0)
