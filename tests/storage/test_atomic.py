"""Files that are there whole or not at all."""

import os

import pytest

from equipoise.storage.atomic import (
    cache_folder,
    new_folder,
    remove_unfinished,
    write_json,
    write_text,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_are_replaced_at_once(tmp_path):
    write_text(tmp_path / "a", "old")
    write_json(tmp_path / "a", {"new": 1})
    assert (tmp_path / "a").read_text() == '{\n  "new": 1\n}\n'
    assert names(tmp_path) == ["a"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    write_text(tmp_path / "a", "old")
    monkeypatch.setattr(
        os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def fail_halfway(path):
    with new_folder(path) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError


def test_a_failed_folder_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError):
        fail_halfway(tmp_path / "b")
    assert names(tmp_path) == []


def test_the_first_folder_stays(tmp_path):
    with new_folder(tmp_path / "b") as mine:
        (mine / "text").write_text("mine")
        with new_folder(tmp_path / "b") as rival:
            (rival / "text").write_text("rival's")
    assert (tmp_path / "b" / "text").read_text() == "rival's"
    assert names(tmp_path) == ["b"]


def test_leftovers_are_cleared(tmp_path):
    killed = new_folder(tmp_path / "b")
    unfinished = killed.__enter__()
    assert names(tmp_path) == [unfinished.name]
    remove_unfinished(tmp_path)
    assert names(tmp_path) == []


def test_the_cache_can_be_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("EQUIPOISE_CACHE")
    assert cache_folder().name == "equipoise"
