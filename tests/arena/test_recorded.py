"""Recorded streams give back what a trace was given, from a map of its files."""

import shutil

import numpy as np
import pytest

from equipoise.arena.streams import catalogue
from equipoise.arena.streams.recorded import Recorded
from equipoise.trace import TraceError, TraceWriter


def write(folder, whole, steps=5, rows=96, tokens=None, seed=0, **about):
    rng = np.random.default_rng(seed)
    batches = rng.random((steps, rows, 8), np.float32)
    with TraceWriter(folder, top_k=2, layers=["first", "second"], about=about) as writer:
        for layer in ("first", "second"):
            for step, scores in enumerate(batches, 1):
                loads = np.full(8, 2 * (tokens or rows) // 8)
                writer.append(
                    step,
                    layer,
                    shift=np.zeros(8),
                    shift_after=np.zeros(8),
                    loads=loads,
                    scores=scores,
                    whole=whole,
                )
    return batches


@pytest.mark.parametrize("whole", [True, False])
def test_scores_come_back(tmp_path, whole):
    batches = write(tmp_path / "trace", whole)
    stream = Recorded.of(tmp_path / "trace", "second")
    assert (stream.steps, stream.num_tokens, stream.num_experts, stream.top_k) == (5, 96, 8, 2)
    for step in (4, 0, 2):
        np.testing.assert_array_equal(stream.batch(step).scores.numpy(), batches[step])


def test_names_find_layers(tmp_path):
    write(tmp_path / "run/trace", whole=False, sequence_length=16)
    streams = catalogue.find_streams(str(tmp_path / "run"), steps=3)
    assert [stream.name for stream in streams] == ["run:first", "run:second"]
    assert {stream.block for stream in streams} == {16}
    assert {stream.steps for stream in streams} == {3}
    assert [stream.name for stream in catalogue.find_streams(f"{tmp_path}/run:second")] == [
        "run:second"
    ]


def test_a_sample_has_not_whole_sequences(tmp_path):
    """Of 192 tokens every second was kept, so 16 rows are of two sequences: 32 blocks."""
    write(tmp_path / "trace", whole=False, tokens=192, sequence_length=16)
    assert Recorded.of(tmp_path / "trace").block == 96 // 32


def test_a_trace_without_scores_is_told(tmp_path):
    with TraceWriter(tmp_path / "trace", top_k=2, layers=1) as writer:
        writer.append(1, 0, shift=np.zeros(8), shift_after=np.zeros(8), loads=np.full(8, 4))
    with pytest.raises(TraceError, match="no scores of layer"):
        Recorded.of(tmp_path / "trace")


def test_damaged_scores_are_told(tmp_path):
    write(tmp_path / "trace", whole=True)
    file = tmp_path / "trace/000/000000003.whole.npz"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(TraceError, match=r"000000003.whole.npz is truncated"):
        Recorded.of(tmp_path / "trace").batch(2)
    scores = np.full((8, 4), 0.5, np.float32)
    scores[5, 2] = np.nan
    with TraceWriter(tmp_path / "nan", top_k=2, layers=1) as writer:
        writer.append(
            1, 0, shift=np.zeros(4), shift_after=np.zeros(4), loads=np.full(4, 4), scores=scores
        )
    with pytest.raises(TraceError, match=r"nan:0: step 1 has the score nan \(token 5, expert 2\)"):
        Recorded.of(tmp_path / "nan").batch(0)


def test_another_trace_in_its_place_is_another_stream(tmp_path):
    seen = set()
    for seed in (0, 1):
        shutil.rmtree(tmp_path / "trace", ignore_errors=True)
        write(tmp_path / "trace", whole=True, seed=seed)
        seen.add(Recorded.of(tmp_path / "trace").identity)
    assert len(seen) == 2


def test_layers_called_alike_are_told_apart(tmp_path):
    for name in ("one", "other"):
        write(tmp_path / name / "scores", whole=False)
    found = [
        stream
        for name in ("one", "other", "one")
        for stream in catalogue.find_streams(f"{tmp_path}/{name}/scores:first")
    ]
    assert [stream.name for stream in found] == ["scores:first"] * 3
    names = [stream.name for stream in catalogue.distinct_streams(found)]
    assert names == [f"{tmp_path}/{name}/scores:first" for name in ("one", "other")]
