"""A whole run over a package of a few lines: who is killed, who survives, and that it resumes."""

import json
import os
import subprocess
import sys

import pytest

from tests.mutation.call_map import STARTS_PROCESSES, Judge
from tests.mutation.judging import judges_of
from tests.mutation.mutants import mutants_of
from tests.mutation.run import ROOT, main, table
from tests.mutation.source_copy import SourceCopy, importers_in

MODULE = """def larger(a, b):
    if a >= b:
        return a
    return b


def wait(times):
    while times > 0:
        times -= 1
    return times
"""
TESTS = """from toy.room.numbers import larger, wait


def test_larger():
    assert larger(2, 1) == 2
    assert larger(1, 2) == 2


def test_it_ends():
    assert wait(3) == 0


def test_it_is_wrong():
    assert larger(1, 2) == 3
"""
SCRIPT = """
import sys
from pathlib import Path
from tests.mutation import campaign, run, sampling, trial

campaign.PRELOADED = ()
trial.LEAST_LIMIT = 2.0
run.ROOT, run.PACKAGE = Path.cwd(), Path.cwd() / "src" / "toy"
sampling.ROOMS = ("room",)
run.main(["--count", "100", "--out", "out", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A package, its tests, and what a run says of them."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "src/toy/room").mkdir(parents=True)
    (folder / "src/toy/__init__.py").touch()
    (folder / "src/toy/room/__init__.py").touch()
    (folder / "src/toy/room/numbers.py").write_text(MODULE)
    (folder / "tests/room").mkdir(parents=True)
    (folder / "tests/room/test_numbers.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return folder, run_in(folder)


def run_in(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def verdicts(folder):
    lines = (folder / "out/results.jsonl").read_text().splitlines()
    return {(line["old"], line["new"]): line for line in map(json.loads, lines)}


def test_a_wrong_program_is_killed(toy):
    killed = verdicts(toy[0])["a >= b", "(a < b)"]
    assert killed["verdict"] == "killed"
    assert killed["by"] == "tests/room/test_numbers.py::test_larger"


def test_an_equivalent_one_survives(toy):
    """Of two equal numbers either is the larger."""
    assert verdicts(toy[0])["a >= b", "(a > b)"]["verdict"] == "survived"


def test_one_that_never_ends_is_killed(toy):
    endless = verdicts(toy[0])["times -= 1", "pass"]
    assert (endless["verdict"], endless["how"]) == ("killed", "timeout")


def test_a_test_that_fails_anyway_is_no_judge(toy):
    assert "failing without a mutant ['tests/room/test_numbers.py::test_it_is_wrong']" in toy[1]
    assert not [line for line in verdicts(toy[0]).values() if line["by"].endswith("is_wrong")]


def test_the_work_tree_is_only_read(toy):
    assert (toy[0] / "src/toy/room/numbers.py").read_text() == MODULE
    assert not list(toy[0].rglob("src/**/__pycache__"))


def test_it_resumes(toy):
    folder, first = toy
    results = folder / "out/results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:-1]))
    second = run_in(folder)
    assert "1/1" in second
    assert "judges, too long" not in second
    assert first.splitlines()[-1] == second.splitlines()[-1]
    survivors = sum('"survived"' in line for line in lines)
    assert f"{survivors}/{survivors} survived" in run_in(folder, "--again")


def test_the_summary_is_for_programs_too(toy):
    rows = json.loads(run_in(toy[0], "--json"))
    assert [row["room"] for row in rows] == ["room", "all"]
    assert rows[0]["killed"] + rows[0]["survived"] == rows[0]["judged"] == rows[0]["mutants"]
    assert f"{rows[0]['killed']}" in table(rows).splitlines()[1]


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "python -m tests.mutation.run --again" in capsys.readouterr().out


def test_judges_are_those_that_call_it():
    (mutant, *_) = mutants_of("room/numbers.py", MODULE)
    assert mutant.function == "larger"
    calls, others = ["room/numbers.py larger"], ["room/numbers.py wait"]
    judges = [
        Judge("tests/other/test_b.py::test_cheap", 0.1, calls),
        Judge("tests/room/test_a.py::test_dear", 5.0, calls),
        Judge("tests/room/test_a.py::test_dearest", 50.0, calls),
        Judge("tests/room/test_a.py::test_else", 0.1, others),
        Judge("tests/room/test_a.py::test_near", 1.0, calls),
    ]
    chosen = [
        each.test.split("::")[1] for each in judges_of(mutant, judges, budget=20.0, importers={})
    ]
    assert chosen == ["test_near", "test_dear", "test_cheap"]
    ranks = Judge("tests/room/test_ranks.py::test_ranks", 9.0, [STARTS_PROCESSES])
    looks = Judge("tests/room/test_ranks.py::test_looks_at_what_ranks_left", 9.5, [])
    assert judges_of(mutant, [*judges, ranks, looks], budget=20.0, importers={})[-2:] == [
        ranks,
        looks,
    ]
    uncalled = [judges[3]]
    assert judges_of(mutant, uncalled, budget=20.0, importers={}) == uncalled


def test_kernels_that_use_a_mutant_are_compiled_anew(tmp_path):
    package = tmp_path / "equipoise"
    (package / "optimum").mkdir(parents=True)
    (package / "optimum/units.py").write_text("from numba import njit\nUNIT = 8\n")
    (package / "optimum/chains.py").write_text("from equipoise.optimum.units import UNIT\n")
    (package / "optimum/apart.py").write_text("X = 1\n")
    copy = SourceCopy(package, tmp_path / "copy", tmp_path / "numba")
    for name in ("units", "chains", "apart"):
        kept = copy.warm_cache / "optimum_" / f"{name}.kernel-1.py311.nbi"
        kept.parent.mkdir(exist_ok=True)
        kept.touch()
    path = "optimum/units.py"
    mutant = mutants_of(path, (package / path).read_text())[0]
    with copy.holding(mutant) as cache:
        assert "UNIT = 9" in (copy.package / path).read_text()
        assert [each.name for each in cache.rglob("*.nbi")] == ["apart.kernel-1.py311.nbi"]
    assert "UNIT = 8" in (copy.package / path).read_text()
    assert len(list(copy.warm_cache.rglob("*.nbi"))) == 3
    kernel = Judge("tests/optimum/test_a.py::test_kernel", 1.0, ["optimum/chains.py solve"])
    apart = Judge("tests/optimum/test_a.py::test_apart", 1.0, ["optimum/apart.py f"])
    importers = importers_in(package)
    assert judges_of(mutant, [kernel, apart], 20.0, importers) == [kernel]
