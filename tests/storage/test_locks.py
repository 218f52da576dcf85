"""Locks: one owner at a time, and free when that one ends."""

import os

import pytest

from equipoise.storage import locks


def test_a_lock_has_one_owner(tmp_path):
    descriptor = locks.take_lock(tmp_path / "lock")
    assert descriptor is not None
    assert locks.take_lock(tmp_path / "lock") is None
    os.close(descriptor)
    assert locks.take_lock(tmp_path / "lock") is not None


def test_a_folder_has_one_owner(tmp_path):
    with (
        locks.lock_folder(tmp_path),
        pytest.raises(ValueError, match="another process is at work"),
        locks.lock_folder(tmp_path),
    ):
        pass
    with locks.lock_folder(tmp_path):
        pass  # it was let go
