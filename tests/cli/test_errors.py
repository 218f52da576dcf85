"""What goes wrong is said in a line, with a code; a traceback is for our own mistakes."""

import os
import subprocess
import sys

import pytest

import equipoise
from equipoise.cli import main

SMALL = ["demo", "--steps", "3", "--tokens", "64", "--experts", "8", "--top-k", "2"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "there is not enough memory: try fewer tokens"),
        (MemoryError("Unable to allocate 7 TiB"), "not enough memory (Unable to allocate 7 TiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "there is not enough memory"),
        (RecursionError("maximum recursion depth"), "a file is nested too deeply"),
        (FloatingPointError("overflow"), "equipoise: overflow"),
    ],
)
def test_it_is_said_in_a_line(error, message, capsys, monkeypatch):
    def demo(*_, **__):
        raise error

    monkeypatch.setattr(equipoise, "demo", demo)
    assert main([*SMALL, "--json"]) == 2
    assert message in capsys.readouterr().err


def test_our_own_mistakes_are_not_hidden(monkeypatch):
    def demo(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(equipoise, "demo", demo)
    with pytest.raises(RuntimeError, match="a bug"):
        main([*SMALL, "--json"])


def test_more_tokens_than_any_memory_holds(capsys):
    assert main(["demo", "--tokens", str(10**12), "--balancers", "none", "--json"]) == 2
    assert "there is not enough memory" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error():
    """As in `equipoise demo --json | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "equipoise", "plan", "tiny"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (141, "")


def test_deep_files_are_refused(tmp_path, capsys):
    (tmp_path / "deep.yaml").write_text("[" * 50_000)
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--config", str(tmp_path / "deep.yaml")])
    assert stop.value.code == 2
    assert "is nested too deeply" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--gpus", "16"], ["--gpu", "A100"], ["--parallel", "ddp"]])
def test_a_cluster_says_what_its_devices_are(flag, capsys):
    assert main(["plan", "deepseek-v3", "--cluster", "h800-64", *flag]) == 2
    assert f"{flag[0]} does not go with --cluster" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--expert-parallel", "--hidden"])
def test_flags_of_a_cluster_without_one(flag, capsys):
    assert main(["plan", "tiny", flag, "1"]) == 2
    assert f"{flag} goes with --cluster" in capsys.readouterr().err
