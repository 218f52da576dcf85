"""A run over many mutants, which can stop anywhere and be resumed: what is known is in a folder.

`judges.jsonl` has a line for each file of tests, `results.jsonl` one for each verdict; of two lines
of the same thing the last one counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutation.call_map import Judge
from tests.mutation.forked import PRELOADED, preload
from tests.mutation.judging import judges_of, within_budget
from tests.mutation.mutants import Mutant
from tests.mutation.sampling import sample
from tests.mutation.source_copy import SourceCopy, importers_in
from tests.mutation.trial import judge, record_judges

SHARED_TESTS = ("contracts", "agreement")


class Campaign:
    """Mutants of a package, judged by the tests below the current folder.

    Args:
        package: The package's folder, which is only read.
        folder: For copies of it; empty, and removed by the caller.
        out: Where judges and verdicts are kept.
        options: See `run.py`.
    """

    def __init__(self, package: Path, folder: Path, out: Path, options: argparse.Namespace) -> None:
        self._package, self._folder, self._options = package, folder, options
        out.mkdir(parents=True, exist_ok=True)
        self._cache = out / "numba"
        self._judges_file, self._results_file = out / "judges.jsonl", out / "results.jsonl"

    def choose(self, rooms: tuple[str, ...]) -> list[Mutant]:
        """The sample that the options ask for."""
        options = self._options
        chosen = sample(self._package, rooms, options.count, options.seed)
        return [mutant for mutant in chosen if options.only in mutant.key]

    def judge_all(self, chosen: list[Mutant], rooms: tuple[str, ...]) -> None:
        """Judge what has no verdict yet, or survived and is to be judged again."""
        preload(PRELOADED)
        importers = importers_in(self._package)
        warm_cache = self._cache / _digest(sorted(self._package.rglob("*.py")))
        copy = SourceCopy(self._package, self._folder / "0", warm_cache)
        judges = self._judges(rooms, copy)
        known = self._verdicts()
        redo = {"survived"} if self._options.again else set()
        open_ones = [
            mutant
            for mutant in chosen
            if mutant.key not in known or known[mutant.key]["verdict"] in redo
        ]
        for room in {mutant.path.split("/")[0] for mutant in open_ones}:
            self._require_that_judges_pass(room, judges, copy)
        workers = self._options.workers
        children = []
        for number in range(1, workers):
            if (child := os.fork()) == 0:
                own = SourceCopy(self._package, self._folder / str(number), warm_cache)
                self._judge_some(open_ones[number::workers], judges, importers, own)
                os._exit(0)
            children.append(child)
        self._judge_some(open_ones[::workers], judges, importers, copy)
        for child in children:
            os.waitpid(child, 0)

    def summary(self, chosen: list[Mutant], rooms: tuple[str, ...]) -> list[dict[str, Any]]:
        """A row for each room, and one for all."""
        known = self._verdicts()
        rows = []
        for room in (*rooms, "all"):
            of_room = [each for each in chosen if room in ("all", each.path.split("/")[0])]
            verdicts = [known[each.key]["verdict"] for each in of_room if each.key in known]
            killed = verdicts.count("killed")
            rows.append(
                {
                    "room": room,
                    "mutants": len(of_room),
                    "judged": len(verdicts),
                    "killed": killed,
                    "survived": len(verdicts) - killed,
                }
            )
        return rows

    def _judge_some(
        self,
        mutants: list[Mutant],
        judges: list[Judge],
        importers: dict[str, set[str]],
        copy: SourceCopy,
    ) -> None:
        for number, mutant in enumerate(mutants, 1):
            chosen = judges_of(mutant, judges, self._options.budget, importers)
            verdict = judge(mutant, chosen, copy)
            line = {"key": mutant.key, **asdict(mutant), **verdict}
            _append(self._results_file, line)
            print(
                f"{number}/{len(mutants)} {verdict['verdict']} {verdict['seconds']:.1f} s "
                f"{mutant.path}:{mutant.line} {mutant.kind} {verdict['how']} {verdict['by']}",
                flush=True,
            )

    def _require_that_judges_pass(self, room: str, judges: list[Judge], copy: SourceCopy) -> None:
        """Without a mutant, in the same way as with one: else a kill would mean nothing."""
        own = [each for each in judges if each.test.startswith(f"tests/{room}/")]
        verdict = judge(None, within_budget(own, self._options.budget, room), copy)
        if verdict["verdict"] == "killed":
            raise RuntimeError(f"{room}: {verdict['by']} fails without a mutant")
        print(f"{room}: {verdict['tests']} judges pass without a mutant", flush=True)

    def _judges(self, rooms: tuple[str, ...], copy: SourceCopy) -> list[Judge]:
        """Judges of every file of tests of the rooms; a file that is known is not run again."""
        known = {line["file"]: line for line in _lines(self._judges_file)}
        package = _digest(sorted(self._package.rglob("*.py")))
        found: list[Judge] = []
        for path in _files_of_tests(rooms):
            digest = package + _digest([path])
            line = known.get(str(path))
            if line is None or line["digest"] != digest:
                kernels = set(copy.warm_cache.rglob("*.nbi"))
                answer = record_judges(str(path), copy, self._options.longest)
                if answer["too_long"] and set(copy.warm_cache.rglob("*.nbi")) != kernels:
                    # what took long may have been numba's compiler, which is needed once
                    answer = record_judges(str(path), copy, self._options.longest)
                line = {"file": str(path), "digest": digest, **answer}
                _append(self._judges_file, line)
                print(
                    f"{path}: {len(line['judges'])} judges, too long {len(line['too_long'])}, "
                    f"failing without a mutant {line['failing']}",
                    flush=True,
                )
            found += [Judge(**each) for each in line["judges"]]
            preload(tuple(name for name in line["modules"] if name.split(".")[0] in PRELOADED))
        return found

    def _verdicts(self) -> dict[str, dict[str, Any]]:
        return {line["key"]: line for line in _lines(self._results_file)}


def _files_of_tests(rooms: tuple[str, ...]) -> list[Path]:
    folders = [Path("tests", name) for name in (*rooms, *SHARED_TESTS)]
    return [path for folder in folders for path in sorted(folder.rglob("test_*.py"))]


def _digest(paths: list[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
