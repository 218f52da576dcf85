"""Two gloo ranks with half of each batch against one process with all of it."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from equipoise.trace import Trace
from equipoise.training import Stopped, train
from equipoise.training.checkpoint import Checkpoints
from equipoise.training.data.batches import Batches
from equipoise.training.data.corpus import prepare_corpus
from equipoise.training.ranks import World
from equipoise.training.stopping import StopSignals
from equipoise.training.trainer import Trainer
from tests.ranks import on_ranks
from tests.training.micro import rows, small_config

LOSS_TOLERANCE = 1e-3
"""relative, after eight steps: sums are taken in another order, and a token may change sides where
two experts nearly tie
"""
LOAD_TOLERANCE = 0.02
"""of all choices of a step that may have changed sides"""


def train_all(configs, rank):
    for config in configs:
        train(config)
        dist.barrier()


def crash_then_resume(config, rank):
    """Sharded checkpoints: written by two ranks, read by two, bit-exact."""
    original = Batches.__getitem__

    def crash(self, step):
        if step + 1 == 6:
            raise RuntimeError("power cut")
        return original(self, step)

    Batches.__getitem__ = crash
    with pytest.raises(RuntimeError, match="power cut"):
        train(config)
    Batches.__getitem__ = original
    dist.barrier()
    train(dataclasses.replace(config, resume=True))


def stop_one_rank(config, rank):
    """A signal to one rank stops both, after the same step."""
    if rank == 1:
        StopSignals.received = 15
    with pytest.raises(Stopped, match="stopped at step 1 of 8"):
        train(config)


def everything(configs, broken, stopped, rank):
    train_all(configs, rank)
    crash_then_resume(broken, rank)
    stop_one_rank(stopped, rank)


@pytest.fixture(scope="module")
def runs(texts, tmp_path_factory):
    """Every training of this file, in one start of two processes."""
    folder = tmp_path_factory.mktemp("ranks")

    def config(name, **changes):
        return small_config(texts, out=str(folder / name), balancer="quantile", **changes)

    alone = config("alone")
    train(alone)
    shared = {
        "ddp": config("ddp"),
        "fsdp": config("fsdp", parallel="fsdp", trace_scores=16, trace_batches=0),
        "one sequence": config("one", steps=1, validation_sequences=1),
        "accumulated": config(
            "accumulated", parallel="fsdp", micro_batch_size=1, validation_sequences=5
        ),
    }
    broken, stopped = (
        config("broken", parallel="fsdp", trace_scores=16, trace_batches=0),
        config("stopped", steps=8),
    )
    on_ranks(functools.partial(everything, list(shared.values()), broken, stopped), 2, folder)
    return {"alone": alone, "broken": broken, "stopped": stopped, **shared}


def record(config, step, layer=1):
    return Trace.open(Path(config.out) / "trace").record(layer, step)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "accumulated"])
def test_the_first_step_is_exactly_the_same(runs, kind):
    for layer in range(2):
        one, other = record(runs["alone"], 1, layer), record(runs[kind], 1, layer)
        assert np.array_equal(one.loads, other.loads)
        assert np.array_equal(one.shift_after, other.shift_after)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "accumulated"])
def test_later_steps_stay_near(runs, kind):
    for one, other in zip(rows(runs["alone"], "train"), rows(runs[kind], "train"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=LOSS_TOLERANCE)
    for step in range(1, 9):
        one, other = record(runs["alone"], step), record(runs[kind], step)
        assert np.abs(one.loads - other.loads).sum() / 2 <= LOAD_TOLERANCE * one.loads.sum()


def test_validation_is_the_same_set(runs):
    one, other = (rows(runs[kind], "validation")[-1] for kind in ("alone", "ddp"))
    assert one["loss"] == pytest.approx(other["loss"], rel=LOSS_TOLERANCE)
    assert one["floor"] == pytest.approx(other["floor"], rel=0.1)


def test_ranks_may_have_unequal_shares_of_validation(runs, tmp_path):
    """Five sequences on two ranks, which under FSDP must make equally many forwards."""
    alone = dataclasses.replace(runs["alone"], out=str(tmp_path), validation_sequences=5)
    expected = train(alone)["validation_loss"]
    assert rows(runs["accumulated"], "validation")[-1]["loss"] == pytest.approx(
        expected, rel=LOSS_TOLERANCE
    )


def test_a_rank_may_have_nothing_to_validate(runs, tmp_path):
    alone = dataclasses.replace(runs["alone"], out=str(tmp_path), steps=1, validation_sequences=1)
    train(alone)
    expected, found = rows(alone, "validation")[-1], rows(runs["one sequence"], "validation")[-1]
    assert found["loss"] == pytest.approx(expected["loss"], rel=LOSS_TOLERANCE)
    assert (found["sequences"], found["floor"]) == (1, None)


def test_scores_of_sharded_routers_are_seen(runs):
    scores = record(runs["fsdp"], 3).scores
    assert scores.shape == (16, 8)
    assert scores.sum(1) == pytest.approx(np.ones(16), abs=1e-5)


def test_sharded_checkpoints_resume_exactly(runs):
    assert rows(runs["broken"]) == rows(runs["fsdp"])


def test_shards_are_safetensors(runs):
    (newest,) = sorted((Path(runs["fsdp"].out) / "checkpoints").iterdir())[-1:]
    names = sorted(path.name for path in newest.iterdir())
    assert [Path(name).suffix for name in names] == [".safetensors", ".safetensors", ".json"]


def test_one_process_reads_shards(runs):
    """Two ranks' shards can be taken up by one process: the same weights, so the same validation
    loss.
    """
    config = runs["fsdp"]
    alone = World(rank=0, ranks=1, device=torch.device("cpu"))
    corpus = prepare_corpus(config.data, vocab_size=config.model.vocab_size)
    trainer = Trainer(dataclasses.replace(config, seed=99), corpus, alone)
    about = Checkpoints(Path(config.out) / "checkpoints", alone, 2).load(
        trainer.tensors(), config.to_dict(), corpus.digest
    )
    assert about["step"] == 8
    assert trainer.evaluate().loss == pytest.approx(
        rows(config, "validation")[-1]["loss"], rel=1e-6
    )


def test_a_signal_to_one_rank_stops_both(runs):
    assert [path.name for path in (Path(runs["stopped"].out) / "checkpoints").iterdir()] == [
        "step-00000001"
    ]
    assert len(rows(runs["stopped"])) == 1
