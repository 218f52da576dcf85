"""Files that are there whole or not at all."""

import os
import time

import pytest

from equipoise.storage.atomic import (
    new_folder,
    remove_unfinished,
    replace_file,
    write_bytes,
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


def test_a_failed_block_keeps_the_old_file(tmp_path):
    def fill_halfway():
        with replace_file(tmp_path / "a") as unfinished:
            unfinished.write_text("half")
            raise KeyboardInterrupt

    write_bytes(tmp_path / "a", b"old")
    with pytest.raises(KeyboardInterrupt):
        fill_halfway()
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_the_disk_is_waited_for_only_if_wanted(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_bytes(tmp_path / "a", b"1", fsync=False)
    assert (synced, names(tmp_path)) == ([], ["a"])
    write_bytes(tmp_path / "a", b"2")
    # the file, and the folder that lists it
    assert len(synced) == 2


def test_others_may_read_what_is_written(tmp_path):
    """Files have the permissions of any other new file, not those of a temporary one."""
    (tmp_path / "plain").write_bytes(b"")
    write_bytes(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


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


def test_young_leftovers_may_be_somebodys(tmp_path):
    for name, age in ((".unfinished-old", 7200), (".unfinished-young", 60), ("finished", 7200)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    remove_unfinished(tmp_path, older_than=3600)
    assert names(tmp_path) == [".unfinished-young", "finished"]
