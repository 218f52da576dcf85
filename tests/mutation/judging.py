"""The tests by which a mutant is judged: those that call the mutated function, the cheapest first.

Of what stands outside functions, and of a function that no test is seen to call, the tests that
call anything of the file are the judges; of what numba compiles, whose calls Python does not see,
those that call anything of the file or of one of the room's files that import it.
The room's files of tests that start processes are judges of all the room, with a budget of their
own: what processes call is not seen, and one test may look at what a fixture of another started.
"""

from __future__ import annotations

from tests.mutation.call_map import STARTS_PROCESSES, Judge
from tests.mutation.mutants import Mutant
from tests.mutation.source_copy import changed_with


def judges_of(
    mutant: Mutant, judges: list[Judge], budget: float, importers: dict[str, set[str]]
) -> list[Judge]:
    """The judges of a mutant whose costs add up to the budget at most."""
    room = mutant.path.split("/")[0]
    found = [each for each in judges if f"{mutant.path} {mutant.function}" in each.calls]
    if mutant.compiled:
        files = {path for path in changed_with(mutant.path, importers) if path.startswith(room)}
        found = [each for each in judges if _touches(each, files)]
    elif not found:
        found = [each for each in judges if _touches(each, {mutant.path})]
    started = {_file(each) for each in judges if STARTS_PROCESSES in each.calls}
    unseen = [
        each
        for each in judges
        if _file(each) in started and _file(each).startswith(f"tests/{room}/")
    ]
    by_calls = within_budget(found, budget, room)
    by_processes = within_budget(unseen, budget, room)
    return by_calls + [each for each in by_processes if each not in by_calls]


def within_budget(judges: list[Judge], budget: float, room: str) -> list[Judge]:
    """The cheapest first, but a case of each test before its other cases, and the room's first."""
    chosen: list[Judge] = []
    spent = 0.0
    for _, judge in sorted(_numbered(judges), key=lambda pair: _rank(*pair, f"tests/{room}/")):
        if spent + judge.seconds <= budget:
            chosen.append(judge)
            spent += judge.seconds
    return chosen


def _file(judge: Judge) -> str:
    return judge.test.split("::")[0]


def _touches(judge: Judge, files: set[str]) -> bool:
    return any(call.split(" ")[0] in files for call in judge.calls)


def _numbered(judges: list[Judge]) -> list[tuple[int, Judge]]:
    """Each judge with the number of cheaper cases of the same test."""
    seen: dict[str, int] = {}
    numbered = []
    for judge in sorted(judges, key=lambda each: each.seconds):
        name = judge.test.split("[")[0]
        seen[name] = seen.get(name, -1) + 1
        numbered.append((seen[name], judge))
    return numbered


def _rank(case: int, judge: Judge, room: str) -> tuple[bool, bool, float]:
    """First cases before others, and within them the room's own tests before the others'."""
    return case > 1, not judge.test.startswith(room), judge.seconds
