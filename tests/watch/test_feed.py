"""What readers are sent: everything first, then what has changed, whatever happens to the runs."""

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from equipoise.results.follow.find_runs import MOST_RUNS, find_runs
from equipoise.trace import TraceWriter
from equipoise.watch.feed import MOST_READERS, Feed, TooManyReadersError
from tests.watch.made_runs import E, add_records, add_rows, made_run, new_trace, record_of, row_of


class Reader:
    """Holds what the page would hold."""

    def __init__(self, *folders, layer=0):
        self.feed = Feed(folders, poll_seconds=0)
        self.events = self.feed.events(layer)
        self.tables, self.runs, self.sent = {}, [], []

    def take(self, text):
        message = json.loads(text)
        self.runs = message["runs"]
        self.sent.append(message["tables"])
        for each in message["tables"]:
            key = each["run"], each["table"]
            self.tables[key] = self.tables.get(key, [])[: each["keep"]] + each["rows"]

    def steps(self, table="curve", run=0):
        return [row[0] for row in self.tables[run, table]]


def watched(*folders, layer=0):
    """Runs steps of a story, each followed by a look."""
    reader = Reader(*folders, layer=layer)

    async def tell(*story):
        for act in story:
            act(reader)
            await next_message(reader)

    return reader, lambda *story: run_apart(tell(*story))


def run_apart(story):
    """In a thread of its own: the browser of other tests keeps a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, story).result()


async def next_message(reader):
    """Until nothing more changes: the feed answers None after some silent polls."""
    while True:
        text = await asyncio.wait_for(anext(reader.events), 20)
        if text is None:
            return
        reader.take(text)


def nothing(reader):
    pass


def test_everything_first_then_what_changed(tmp_path):
    run = made_run(tmp_path / "run", steps=6)
    reader, tell = watched(run)

    def go_on(reader):
        reader.sent.clear()
        add_rows(run, [row_of(7)])
        with TraceWriter.resume(run / "trace", after=6) as writer:
            add_records(writer, [7])

    tell(nothing, go_on)
    assert reader.steps() == [1, 2, 3, 4, 5, 6, 7]
    assert reader.steps("loads:0")[-1] == 7
    changes = {each["table"]: each for tables in reader.sent for each in tables}
    assert changes["curve"]["keep"] == 6
    assert len(changes["curve"]["rows"]) == 1
    assert "validation" not in changes


def test_a_run_that_does_not_exist_yet(tmp_path):
    run = tmp_path / "later"
    reader, tell = watched(run)
    states = []
    tell(
        nothing,
        lambda reader: (states.append(reader.runs[0]["state"]), made_run(run)),
    )
    assert states == ["waiting"]
    assert reader.runs[0]["state"] == "running"
    assert reader.steps() == list(range(1, 11))


def test_a_run_that_is_deleted_and_begins_again(tmp_path):
    run = made_run(tmp_path / "run")
    reader, tell = watched(run)
    seen = []
    tell(
        nothing,
        lambda reader: shutil.rmtree(run),
        lambda reader: (
            seen.append((reader.runs[0]["state"], reader.steps(), reader.runs[0]["sentence"])),
            made_run(run, steps=3),
        ),
    )
    state, steps, sentence = seen[0]
    assert (state, steps) == ("deleted", list(range(1, 11)))
    assert "was deleted; this is what was read before, at step 10 of 40" in sentence
    assert reader.steps() == [1, 2, 3]
    assert reader.steps("loads:0") == [1, 2, 3]


def test_a_resumed_run_is_shown_as_it_is(tmp_path):
    run = made_run(tmp_path / "run")
    reader, tell = watched(run)

    def resume(reader):
        (run / "metrics.jsonl").unlink()
        add_rows(run, [row_of(step, level=8) for step in range(1, 6)])
        TraceWriter.resume(run / "trace", after=5)

    tell(nothing, resume)
    assert reader.steps() == [1, 2, 3, 4, 5]
    assert reader.steps("loads:0") == [1, 2, 3, 4, 5]


def test_records_written_again_and_joined_are_read_again(tmp_path):
    """Nobody looked between: single records were cut, written again and joined to a chunk."""
    run = made_run(tmp_path / "run", steps=1)
    shutil.rmtree(run / "trace")
    writer = new_trace(run / "trace", range(1, 21))
    reader, tell = watched(run)

    def resume(reader):
        (run / "metrics.jsonl").unlink()
        add_rows(run, [row_of(step, level=8) for step in range(1, 141)])
        again = TraceWriter.resume(run / "trace", after=5)
        for step in range(6, 141):
            again.append(step, "a", **{**record_of(step), "loads": np.full(E, 16)})

    tell(nothing, resume)
    assert writer.trace.folder == run / "trace"
    rows = {row[0]: row[1:] for row in reader.tables[0, "loads:0"]}
    assert list(rows) == list(range(1, 141))
    assert rows[10] == [100] * E


def test_a_trace_alone_is_a_run(tmp_path):
    """As balance(..., trace=...) leaves it: no metrics, no config."""
    new_trace(tmp_path / "hf" / "trace", range(1, 6))
    for folder in (tmp_path / "hf", tmp_path / "hf" / "trace"):
        reader, tell = watched(folder)
        tell(nothing)
        assert reader.steps() == [1, 2, 3, 4, 5]
        assert reader.runs[0]["layers"] == ["a", "b"]
        assert "hf (deepseek, u = 0.001) is running, at step 5" in reader.runs[0]["sentence"]
        assert reader.runs[0]["tiles"][3][1] == "-"


def test_another_layer_has_other_loads(tmp_path):
    reader, tell = watched(made_run(tmp_path / "run"), layer=1)
    tell(nothing)
    assert (0, "loads:1") in reader.tables
    assert (0, "loads:0") not in reader.tables


def test_several_runs_are_beside_each_other(tmp_path):
    reader, tell = watched(made_run(tmp_path / "a"), made_run(tmp_path / "b", steps=4))
    tell(nothing)
    assert [run["name"] for run in reader.runs] == ["a", "b"]
    assert reader.steps(run=1) == [1, 2, 3, 4]
    colors = [run["style"]["color"] for run in reader.runs]
    assert colors[0] != colors[1]


def test_a_sweep_is_its_trials(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": "equipoise sweep", "trials": {}}')
    made_run(tmp_path / "trials" / "u=1")
    reader, tell = watched(tmp_path)
    tell(nothing, lambda reader: made_run(tmp_path / "trials" / "u=2"))
    assert [run["name"] for run in reader.runs] == ["u=1", "u=2"]


def test_of_many_runs_the_latest_are_shown(tmp_path):
    for n in range(MOST_RUNS + 3):
        add_rows(tmp_path / f"run-{n:02}", [row_of(1)])
    found = find_runs([tmp_path])
    assert (len(found.runs), found.left_out) == (MOST_RUNS, 3)
    reader, tell = watched(tmp_path)
    tell(nothing)
    assert len(reader.runs) == MOST_RUNS


def test_one_name_in_two_places_is_told_apart(tmp_path):
    made_run(tmp_path / "x" / "a")
    made_run(tmp_path / "y" / "a")
    names = [run.name for run in find_runs([tmp_path / "x" / "a", tmp_path / "y" / "a"]).runs]
    assert len(set(names)) == 2


def test_readers_are_not_without_limit(tmp_path):
    async def many():
        feed = Feed([tmp_path], poll_seconds=0)
        readers = [feed.events(0) for _ in range(MOST_READERS)]
        for each in readers:
            await anext(each)
        with pytest.raises(TooManyReadersError):
            await anext(feed.events(0))
        await readers[0].aclose()
        assert len(feed.readers) == MOST_READERS - 1

    run_apart(many())


def test_names_cannot_break_a_message(tmp_path):
    run = made_run(tmp_path / "a\n\ndata: {}\n\n")
    reader, tell = watched(run)
    tell(nothing)
    assert reader.runs[0]["name"] == "a\n\ndata: {}\n\n"
