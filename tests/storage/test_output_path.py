"""Where results go: ~ is the home folder, and nothing is nowhere."""

from pathlib import Path

import pytest

from equipoise.storage.output_path import output_path
from equipoise.training.config import preset


def test_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert output_path("~/runs/a") == tmp_path / "runs" / "a"
    assert output_path(Path("runs")) == Path("runs")
    assert preset("tiny", out="~/x").out == str(tmp_path / "x")


@pytest.mark.parametrize("path", ["", "  "])
def test_an_empty_name_is_refused(path):
    with pytest.raises(ValueError, match="is empty"):
        output_path(path)
    with pytest.raises(ValueError, match="is empty"):
        preset("tiny", out=path)
