"""A whole training: what it learns, what it leaves behind, and that observing changes nothing."""

import itertools
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise
from equipoise.trace import Trace
from equipoise.training import loop, train
from equipoise.training.config import read_config
from equipoise.training.observers import tensorboard
from equipoise.training.trainer import Trainer
from tests.training.micro import rows, without_times


def test_every_run_says_what_it_was(micro):
    config = micro()
    result = train(config)
    folder = Path(config.out)
    assert read_config(folder / "config.yaml") == config
    assert json.loads((folder / "result.json").read_text()) == result
    about = json.loads((folder / "run.json").read_text())
    assert about["corpus"]["digest"] == result["corpus_digest"]
    assert about["versions"]["torch"] == torch.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"])
    assert result["tokens"] == 8 * 4 * 16
    assert {
        "validation_loss",
        "imbalance",
        "max_violation",
        "train_loss",
        "seconds",
        "balancer",
    } <= result.keys()


def test_every_step_has_a_line(micro):
    config = micro()
    train(config)
    assert [row["step"] for row in rows(config, "train")] == list(range(1, 9))
    assert [row["step"] for row in rows(config, "validation")] == [4, 8]
    row = rows(config, "train")[0]
    assert row["imbalance"] == pytest.approx(sum(row["layers"]["imbalance"]) / 2)


def test_the_same_config_gives_the_same_numbers(micro, tmp_path):
    one, other = (micro(out=str(tmp_path / name)) for name in "ab")
    assert without_times(train(one)) == without_times(train(other))
    assert rows(one) == rows(other)


@pytest.mark.parametrize(
    "changes",
    [
        {"recompute": True},
        {"trace_every": 0, "checkpoint_every": 0, "evaluate_every": 0},
        {"trace_scores": 64, "histogram_steps": (1, 4)},
    ],
    ids=str,
)
def test_observing_changes_nothing(micro, tmp_path, changes):
    plain, other = micro(out=str(tmp_path / "a")), micro(out=str(tmp_path / "b"), **changes)
    train(plain)
    train(other)
    assert rows(plain, "train") == rows(other, "train")


def test_accumulation_is_the_whole_batch(micro, tmp_path):
    whole, parts = (
        micro(out=str(tmp_path / "a")),
        micro(out=str(tmp_path / "b"), micro_batch_size=1),
    )
    train(whole)
    train(parts)
    first = [rows(config, "train")[0] for config in (whole, parts)]
    assert first[0]["layers"] == first[1]["layers"]  # exactly the same loads
    for one, other in zip(rows(whole, "train"), rows(parts, "train"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


@pytest.mark.parametrize("name", equipoise.balancers())
def test_every_balancer_trains(micro, name):
    config = micro(balancer=name, steps=3, look_ahead=0)
    assert np.isfinite(train(config)["validation_loss"])


@pytest.mark.parametrize("name", ["deepseek", "curvature"])
def test_looking_ahead_moves_the_shift(micro, tmp_path, name):
    traces = []
    for look_ahead in (0, 1000):
        config = micro(
            out=str(tmp_path / str(look_ahead)),
            balancer=name,
            look_ahead=look_ahead,
            learning_rate=0.05,
        )
        train(config)
        traces.append(Trace.open(Path(config.out) / "trace").record(0, 8))
    assert not np.array_equal(traces[0].shift, traces[1].shift)


def test_the_trace_holds_every_step(micro):
    config = micro(trace_scores=10_000)
    train(config)
    trace = Trace.open(Path(config.out) / "trace")
    assert trace.layers == ("blocks.1", "blocks.2")
    assert trace.sequence_length == config.model.sequence_length
    records = [trace.record(0, step) for step in trace.steps(0)]
    assert [record.step for record in records] == list(range(1, 9))
    for record, later in itertools.pairwise(records):
        assert np.array_equal(record.shift_after, later.shift)
        gap = record.loads.sum() / 8 - record.loads
        assert record.shift + record.step_size * gap == pytest.approx(record.shift_after, abs=1e-6)


def test_whole_scores_give_the_loads(micro):
    """What the theorems rest on: the recorded scores and shift lead to the recorded loads."""
    config = micro(trace_scores=10_000, balancer="quantile")
    train(config)
    record = Trace.open(Path(config.out) / "trace").record(1, 5)
    assert record.whole
    chosen = torch.from_numpy(record.scores + record.shift).topk(2).indices
    assert np.array_equal(np.bincount(chosen.flatten(), minlength=8), record.loads)


def test_a_training_can_be_verified(micro):
    """By default a sample at every step, and some whole batches, on which the paper's statements
    apply.
    """
    config = micro(steps=12, trace_batches=3)
    train(config)
    trace = Trace.open(Path(config.out) / "trace")
    assert list(trace.whole_steps(0)) == [4, 8, 12]
    assert len(trace.record(0, 5).scores) == 32
    verdicts = {verdict.name: verdict for verdict in equipoise.verify(trace)}
    assert verdicts["1 change in Lagrangian"].applies
    assert not [verdict for verdict in verdicts.values() if verdict.refuted]


def test_histograms_count_every_score(micro):
    config = micro(histogram_steps=(3,))
    train(config)
    (path,) = (Path(config.out) / "histograms").iterdir()
    layer = json.loads(path.read_text())["layers"]["blocks.1"]
    assert sum(layer["scores"]["counts"]) == 4 * 16 * 8
    assert len(layer["shift"]) == 8


@pytest.mark.slow
def test_compiled_layers_train(micro, tmp_path):
    plain, compiled = (
        micro(out=str(tmp_path / "a"), steps=2),
        micro(out=str(tmp_path / "b"), steps=2, compile=True),
    )
    assert train(compiled)["train_loss"] == pytest.approx(train(plain)["train_loss"], rel=1e-4)


def test_bfloat16_trains_with_float32_weights(micro):
    config = micro(precision="bfloat16", steps=3)
    assert np.isfinite(train(config)["validation_loss"])


def test_folders_are_not_overwritten(micro):
    config = micro(steps=2)
    train(config)
    for left in ("run.json", "result.json", "step-00000002"):
        with pytest.raises(ValueError, match=rf"already holds a run \({left}\): pass --resume"):
            train(config)
        # a new run would take the old one's checkpoints for its own
        (Path(config.out) / left).unlink(missing_ok=True)


def test_scores_that_are_not_finite_name_the_step(micro, monkeypatch):
    real = Trainer._forward_backward

    def failing(self, number, keep_scores):
        if number == 3:
            raise ValueError("scores are not finite")
        return real(self, number, keep_scores)

    monkeypatch.setattr(Trainer, "_forward_backward", failing)
    with pytest.raises(ValueError, match="in step 3 of the training: scores are not finite"):
        train(micro())


@pytest.mark.parametrize("changes", [{"batch_size": 4, "micro_batch_size": 3}])
def test_batches_must_divide(micro, changes):
    with pytest.raises(ValueError, match="which do not divide into micro-batches of 3"):
        train(micro(**changes))


def test_a_terminal_sees_progress(micro, monkeypatch, capsys):
    monkeypatch.setattr(loop, "on_a_terminal", lambda: True)
    train(micro())
    shown = capsys.readouterr()
    assert "step 8: validation loss" in shown.err
    assert "8/8" in shown.err
    assert shown.out == ""


def test_elsewhere_there_are_lines_and_no_bar(micro, capfd):
    train(micro(steps=2))
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split()[0] for line in err.splitlines()] == ["training", "step"]


def test_tensorboard_is_reported(micro, monkeypatch):
    """With a stand-in for its writer: the package is optional."""
    written = []

    class Writer:
        def __init__(self, folder, purge_step):
            written.append(("from", purge_step, 0))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def add_image(self, name, pixels, step, dataformats):
            written.append((name, pixels.shape[2], step))

        def close(self):
            written.append(("closed", 0, 0))

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setitem(sys.modules, "tensorboard", types.ModuleType("tensorboard"))
    config = micro(steps=3, log_to="tensorboard", update_rate=0.5)
    train(config)
    losses = [value for name, value, _ in written if name == "train/loss"]
    assert losses == [row["loss"] for row in rows(config, "train")]
    assert written[0] == ("from", 1, 0)
    assert written[-1][0] == "closed"
    for name in ("imbalance", "max_violation", "idle_share"):
        sent = [value for key, value, _ in written if key == f"balance/{name}"]
        assert sent == pytest.approx([row[name] for row in rows(config, "train")])
    switched = [value for key, value, _ in written if key == "balance/switched_share"]
    # a step of 0.5 moves nearly every choice of softmax scores
    assert len(switched) == 3
    assert max(switched) > 0.5
    pictures = [(layers, step) for key, layers, step in written if key == "balance/loads"]
    assert pictures == [(3, 1), (3, 3)]
    last = rows(config, "validation")[-1]
    assert ("validation/imbalance", pytest.approx(last["imbalance"]), 3) in written


@pytest.mark.parametrize(
    ("log_to", "there", "folder"),
    [
        ("auto", True, "run/tensorboard"),
        ("auto", False, None),
        ("none", True, None),
        ("tensorboard", False, "run/tensorboard"),
        ("tensorboard:logs/a:b", True, "logs/a:b"),
    ],
)
def test_where_event_files_go(log_to, there, folder, monkeypatch):
    monkeypatch.setattr(tensorboard, "has_tensorboard", lambda: there)
    found = tensorboard.tensorboard_folder(log_to, Path("run"))
    assert found == (None if folder is None else Path(folder))


@pytest.mark.parametrize("log_to", ["wandb", "tensorboard:", "tensorboards", "none:a", ""])
def test_other_trackers_are_refused(log_to, micro):
    with pytest.raises(ValueError, match="log_to must be auto, none, tensorboard or"):
        micro(log_to=log_to)


def test_where_it_logs_may_change_on_resuming(micro):
    config = micro(steps=2)
    train(config)
    assert train(micro(steps=2, resume=True, log_to="none"))["steps"] == 2


def test_figures_are_measured_against_the_target(micro):
    """Loads that follow an uneven target are balanced: in the log, in validation, in the trace."""
    target = [4.0, 4.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    config = micro(balancer="quantile", balancer_options={"target": target}, trace_every=1, steps=4)
    train(config)
    trace = Trace.open(Path(config.out) / "trace")
    assert list(trace.target) == target
    layers = list(trace.layers)
    for row in rows(config, "train"):
        expected = [
            float(equipoise.metrics(trace.loads(layer, row["step"]), target)["imbalance"])
            for layer in layers
        ]
        assert row["layers"]["imbalance"] == pytest.approx(expected)
    validation = rows(config, "validation")[-1]
    assert validation["imbalance"] < 0.35
    assert validation["floor"] is not None


def test_validation_is_measured_against_the_target():
    from equipoise.training.evaluation import summarise_validation

    weights = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    loads = torch.tensor([[[20, 10, 10]], [[22, 8, 10]], [[18, 12, 10]]])
    assert summarise_validation(3.0, loads, weights).layers[0]["imbalance"] == pytest.approx(0)
    assert summarise_validation(3.0, loads).layers[0]["imbalance"] > 0.3
    even = summarise_validation(3.0, loads, torch.ones(3, dtype=torch.float64))
    assert even == summarise_validation(3.0, loads)
