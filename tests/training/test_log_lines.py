"""Where no terminal is, a training's log is never empty."""

import io
import re
import sys

import pytest

from equipoise.training import train
from equipoise.training.evaluation import Validation
from equipoise.training.observers import LogLines
from equipoise.training.observers.log_lines import describe_duration
from equipoise.training.trainer import TrainingStep


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def step_of(number):
    return TrainingStep(number, 5.0, 0.0, 1.0, 1e-3, layers=[])


def watched_steps(clock, steps, seconds):
    """Lines of a training whose steps take so many seconds each."""
    lines = LogLines(100, 1000, clock=clock)
    lines.resumed(0)
    for number in range(1, steps + 1):
        clock.now += seconds
        lines.stepped(step_of(number), seconds)
    return lines


def test_a_line_comes_every_thirty_seconds(capsys):
    watched_steps(Clock(), 12, seconds=10)
    begin, *rest = capsys.readouterr().err.splitlines()
    assert begin == "training begins: 100 steps"
    assert [int(re.match(r"step (\d+) of 100: ", line)[1]) for line in rest] == [3, 6, 9, 12]
    assert rest[0].endswith("loss 5.0000, imbalance 0.0000, 100 tokens/s, 16 min left")


def test_slow_steps_have_a_line_each(capsys):
    watched_steps(Clock(), 3, seconds=400)
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_each_evaluation_has_a_line(capsys):
    lines = LogLines(100, 1000, clock=Clock())
    lines.resumed(40)
    lines.evaluated(50, Validation(4.5, [{"imbalance": 0.25, "max_violation": 1}], 0.01, 0.02, 8))
    assert capsys.readouterr().err.splitlines() == [
        "training continues after step 40 of 100 steps",
        "step 50: validation loss 4.5000, imbalance 0.2500 (chance alone 0.0200)",
    ]


def test_a_reader_that_leaves_stops_no_training(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    watched_steps(Clock(), 12, seconds=10)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (720, "12 min"), (12_600, "3.5 h")]
)
def test_durations_are_readable(seconds, text):
    assert describe_duration(seconds) == text


def test_a_redirected_training_says_where_it_is(micro, capsys):
    train(micro())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.findall(r"^step (\d+): validation loss", captured.err, re.MULTILINE) == ["4", "8"]
