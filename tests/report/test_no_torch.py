"""`equipoise report` draws what was measured before: it imports no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

OLD = Path(__file__).parents[1] / "end_to_end" / "files_of_0_1"
SEARCH = Path(__file__).parents[2] / "docs" / "results" / "paper-tiny-search.json"
HEAVY = {"torch", "transformers", "numba"}
WITHOUT_TORCH = """
import sys
from equipoise.cli import main
code = main(sys.argv[1:])
print("imported:", *sorted(name for name in sys.modules if "." not in name))
sys.exit(code)
"""


def imported_by(*arguments):
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].removeprefix("imported: ").split())


@pytest.mark.parametrize("folder", ["comparison", "comparison/rows.json", "sweep", "arena"])
def test_a_page_is_written_without_torch(folder, tmp_path):
    assert not imported_by("report", OLD / folder, "--out", tmp_path / "page.html") & HEAVY
    assert (tmp_path / "page.html").stat().st_size > 100_000


def test_tables_and_observations_are_printed_without_torch():
    asked = ("--markdown", "--search", SEARCH)
    assert not imported_by("report", OLD / "comparison", *asked) & HEAVY
