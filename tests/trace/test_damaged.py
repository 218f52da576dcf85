"""Files that are damaged, or somebody else's, are named in an error; nothing is unpickled, nothing
crashes.
"""

import json

import numpy as np
import pytest

from equipoise.trace import Trace, TraceError, TraceWriter
from equipoise.trace.header import TRACE_FORMAT
from equipoise.trace.record import RECORD_COLUMNS
from tests.trace.tools import E, K, step_of, written

FOREIGN = {
    "objects": {"scores": np.full((3, E), {}, dtype=object)},
    "integers": {"scores": np.zeros((3, E), int)},
    "one dimension": {"scores": np.zeros(3 * E, np.float32)},
    "other experts": {"scores": np.zeros((3, E + 1), np.float32)},
    "other rows": {"scores": np.zeros((2, E), np.float32)},
    "no such name": {"other": np.zeros((3, E), np.float32)},
}


def test_reading_unpickles_nothing(tmp_path):
    written(tmp_path / "t", [0])
    path = tmp_path / "t" / "000" / "000000000-000000000.npz"
    np.savez(path, **{name: np.array([{}], dtype=object) for name in RECORD_COLUMNS})
    with pytest.raises(
        TraceError, match=r"truncated or is not of an equipoise trace.*allow_pickle"
    ):
        Trace.open(tmp_path / "t").record(0, 0)


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("read", ["record", "scores"])
def test_foreign_samples_are_refused(tmp_path, foreign, read):
    """A map of Python objects would take bytes of the file for addresses, and crash."""
    writer = TraceWriter(tmp_path / "t", top_k=K, layers=1)
    writer.append(0, 0, **step_of(0))
    path = tmp_path / "t" / "000" / "000000000-000000000.npz"
    with np.load(path) as file:
        columns = {name: file[name] for name in RECORD_COLUMNS if name != "scores"}
    np.savez(path, **columns, **foreign)
    with pytest.raises(TraceError, match=r"000000000-000000000\.npz is"):
        getattr(Trace.open(tmp_path / "t"), read)(0, 0)


@pytest.mark.parametrize("foreign", [*FOREIGN, "missing"])
@pytest.mark.parametrize("read", ["record", "scores"])
def test_foreign_whole_batches_are_refused(tmp_path, foreign, read):
    writer = TraceWriter(tmp_path / "t", top_k=K, layers=1)
    writer.append(0, 0, **step_of(0) | {"scores": np.zeros((10, E)), "whole": True})
    path = tmp_path / "t" / "000" / "000000000.whole.npz"
    if foreign == "missing":
        path.unlink()
    else:
        np.savez(path, **FOREIGN[foreign])
    with pytest.raises(TraceError, match=r"000000000\.whole\.npz is"):
        getattr(Trace.open(tmp_path / "t"), read)(0, 0)


@pytest.mark.parametrize("column", ["step", "shift", "loads", "unit", "rows", "whole"])
@pytest.mark.parametrize("wrong", [np.zeros((2, 2, 2)), np.array("x"), np.zeros(0)], ids=str)
def test_foreign_columns_are_refused(tmp_path, column, wrong):
    writer = TraceWriter(tmp_path / "t", top_k=K, layers=1)
    writer.append(0, 0, **step_of(0))
    path = tmp_path / "t" / "000" / "000000000-000000000.npz"
    with np.load(path) as file:
        columns = dict(file) | {column: wrong}
    np.savez(path, **columns)
    with pytest.raises(TraceError, match=r"000000000-000000000\.npz is truncated or is not"):
        Trace.open(tmp_path / "t").record(0, 0)


@pytest.mark.parametrize("size", [0, 1, 100, 700, -1])
def test_truncated_files_are_reported(tmp_path, size):
    written(tmp_path / "t", [0])
    path = tmp_path / "t" / "000" / "000000000-000000000.npz"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TraceError, match=r"000000000-000000000.npz is truncated"):
        Trace.open(tmp_path / "t").record(0, 0)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not of an equipoise trace"),
        ('{"format": "tensorboard"}', "not of an equipoise trace"),
        (
            json.dumps({"format": TRACE_FORMAT, "version": 2}),
            "version 2 of the layout, and this equipoise reads 1",
        ),
        (
            json.dumps({"format": TRACE_FORMAT, "version": 1, "layers": []}),
            "lacks about, target, top_k",
        ),
    ],
)
def test_foreign_folders_are_reported(tmp_path, header, message):
    with pytest.raises(TraceError, match=r"no trace\.json in it"):
        Trace.open(tmp_path)
    (tmp_path / "trace.json").write_text(header)
    with pytest.raises(TraceError, match=message):
        Trace.open(tmp_path)
