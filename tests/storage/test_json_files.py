"""A JSON file that cannot be read is named, with what is wrong; JSON that is written is strict."""

import json
import math

import numpy as np
import pytest

from equipoise.storage.atomic import write_json
from equipoise.storage.json_files import json_text, read_json, read_json_object


def test_what_was_written_is_read(tmp_path):
    write_json(tmp_path / "a.json", {"μ": [1, None]})
    assert read_json_object(tmp_path / "a.json") == {"μ": [1, None]}


@pytest.mark.parametrize(
    "content", [b"", b'{"a": 1', b"\xff\xfe\x00", b"\x80abc", b"[" * 200_000], ids=lambda c: c[:9]
)
def test_damage_is_reported_with_the_file(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is damaged: it is not JSON .*: delete it"):
        read_json(tmp_path / "a.json", remedy="delete it")


def test_a_list_is_no_object(tmp_path):
    write_json(tmp_path / "a.json", [1])
    assert read_json(tmp_path / "a.json") == [1]
    with pytest.raises(ValueError, match=r"a\.json .* holds no JSON object, but list: fetch it"):
        read_json_object(tmp_path / "a.json", remedy="fetch it")


def test_a_missing_file_stays_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_what_json_has_no_word_for_is_null():
    content = {"a": [1.5, math.nan, (math.inf, -math.inf)], "b": {"c": np.float64("nan")}, "d": "x"}
    assert json.loads(json_text(content)) == {
        "a": [1.5, None, [None, None]],
        "b": {"c": None},
        "d": "x",
    }
