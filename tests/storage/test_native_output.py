"""native_output_dropped: what goes past sys.stdout is dropped, within it and only there."""

import os

import pytest

from equipoise.storage.native_output import native_output_dropped


def test_only_what_is_written_within_is_dropped(capfd):
    print("before")
    with native_output_dropped():
        os.write(1, b"debugging of a library\n")
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"


def test_it_ends_where_the_work_fails(capfd):
    with pytest.raises(KeyboardInterrupt), native_output_dropped():
        raise KeyboardInterrupt
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_a_program_without_stdout_goes_on(monkeypatch):
    def closed(descriptor):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(os, "dup", closed)
    with native_output_dropped():
        pass
