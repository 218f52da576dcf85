"""metrics.jsonl is read from where the last look ended, whatever happens to it."""

import json

import pytest

from equipoise.results.follow import metrics_follower
from equipoise.results.follow.metrics_follower import MetricsFollower
from tests.watch.made_runs import add_rows, evaluation_of, row_of


def steps_of(follower):
    return [row[0] for row in follower.rows()]


@pytest.fixture
def follower(tmp_path):
    return MetricsFollower(tmp_path / "metrics.jsonl")


def test_it_waits_for_the_file(follower, tmp_path):
    assert not follower.poll()
    add_rows(tmp_path, [row_of(1)])
    assert follower.poll()
    assert steps_of(follower) == [1]


def test_only_what_is_new_is_read(follower, tmp_path, monkeypatch):
    add_rows(tmp_path, [row_of(step) for step in range(1, 50)])
    follower.poll()
    parsed = []
    parse = metrics_follower.parse_metrics
    monkeypatch.setattr(
        metrics_follower, "parse_metrics", lambda line: parsed.append(line) or parse(line)
    )
    assert not follower.poll()
    add_rows(tmp_path, [row_of(50), evaluation_of(50)])
    assert follower.poll()
    assert len(parsed) == 2
    assert follower.newest["step"] == 50
    assert follower.last_evaluation[1].floor == 0.1


def test_a_line_is_read_when_it_is_whole(follower, tmp_path):
    text = json.dumps(row_of(1)) + "\n"
    path = tmp_path / "metrics.jsonl"
    path.write_text(text[:40])
    follower.poll()
    assert steps_of(follower) == []
    path.write_text(text)
    follower.poll()
    assert steps_of(follower) == [1]
    assert follower.damaged == 0


@pytest.mark.parametrize(
    "line", ['{"kind": "tra', "[1]", '{"kind": "train", "step": 3}', "\x00", '{"step": 1e999}']
)
def test_damaged_lines_are_counted(follower, tmp_path, line):
    add_rows(tmp_path, [row_of(1)])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    add_rows(tmp_path, [row_of(2)])
    follower.poll()
    assert steps_of(follower) == [1, 2]
    assert follower.damaged == 1


def test_what_is_not_finite_is_a_gap(follower, tmp_path):
    add_rows(tmp_path, [{**row_of(1), "loss": float("nan")}])
    follower.poll()
    assert follower.rows()[0][4] is None


def test_a_resumed_training_is_read_again(follower, tmp_path):
    add_rows(tmp_path, [row_of(step) for step in range(1, 9)])
    follower.poll()
    # as MetricsFile.resumed does: another file of the same name, and longer by now
    again = tmp_path / "again"
    add_rows(again, [row_of(step, level=9) for step in range(1, 12)])
    (again / "metrics.jsonl").replace(tmp_path / "metrics.jsonl")
    follower.poll()
    assert steps_of(follower) == list(range(1, 12))
    assert follower.generation == 1
    assert follower.rows()[0][3] == pytest.approx(9.5)


def test_a_file_cut_in_place_is_read_again(follower, tmp_path):
    add_rows(tmp_path, [row_of(step) for step in range(1, 9)])
    follower.poll()
    path = tmp_path / "metrics.jsonl"
    inode = path.stat().st_ino
    # longer than before, so that only what stands in it shows that it is another one
    path.write_text("".join(json.dumps(row_of(step, level=7)) + "\n" for step in range(1, 19)))
    assert path.stat().st_ino == inode
    follower.poll()
    assert follower.generation == 1
    assert steps_of(follower) == list(range(1, 19))


def test_a_deleted_file_leaves_what_was_read(follower, tmp_path):
    add_rows(tmp_path, [row_of(1), row_of(2)])
    follower.poll()
    (tmp_path / "metrics.jsonl").unlink()
    assert not follower.poll()
    assert steps_of(follower) == [1, 2]


def test_a_long_file_is_sampled_first(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_follower, "SAMPLED_BYTES", 10_000)
    monkeypatch.setattr(metrics_follower, "SAMPLED_LINES", 20)
    monkeypatch.setattr(metrics_follower, "TAIL_BYTES", 1000)
    add_rows(tmp_path, [row_of(step) for step in range(1, 401)])
    whole = MetricsFollower(tmp_path / "metrics.jsonl", slice_bytes=1 << 20)
    follower = MetricsFollower(tmp_path / "metrics.jsonl", slice_bytes=20_000)
    follower.poll()
    assert 15 < len(follower.rows()) < 30
    assert follower.newest["step"] == 400
    looks = 0
    while follower.behind:
        assert steps_of(follower) == sorted(set(steps_of(follower)))
        assert steps_of(follower)[-1] == 400
        follower.poll()
        looks += 1
    assert looks > 3
    while not len(whole.rows()) or whole.behind:
        whole.poll()
    assert follower.rows() == whole.rows()
