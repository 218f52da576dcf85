"""The mutator itself: what it changes, what it leaves alone, and whom its judges convict."""

import ast

import pytest

from tests.mutation.mutants import is_another_program, mutants_of
from tests.mutation.operators import OPERATORS
from tests.mutation.run import PACKAGE
from tests.mutation.sampling import GPU, ROOMS, sample, sample_of_room

EVERYTHING = '''"""A docstring, 1 + 1."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import nothing as none_at_all

Alias = int | str
__all__ = ["spread", "Box"]
LIMIT = 3


def spread(values: "list[int]" = (1, 2), *, low: int | None = None) -> int | None:
    """Another docstring, with 2 - 1."""
    if not values or low is True:
        raise ValueError(f"{len(values) - 1} values, at least {1 + 1}: " + "none" * 2)
    total = -max(values) + sorted(values, reverse=True)[0] * LIMIT
    if low:
        total += sum(values[1:LIMIT])
    return total


class Box:
    def __init__(self):
        self.size = 1.5

    def __repr__(self):
        return f"Box({self.size})" if self.size > 1 else "Box()"
'''


@pytest.fixture
def everything():
    return mutants_of("box.py", EVERYTHING)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
def test_each_operator_makes_other_programs(everything, operator):
    of_kind = [each for each in everything if each.kind == operator.__name__]
    assert any(is_another_program(each, EVERYTHING) for each in of_kind)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("not values", "(values)"),
        ("low is True", "(low is not True)"),
        ("not values or low is True", "(not values and low is True)"),
        ("max", "min"),
        ("-max(values)", "(max(values))"),
        ("sorted(values, reverse=True)", "sorted(values)"),
        ("1:LIMIT", "1:LIMIT - 1"),
        ("1:LIMIT", "1 + 1:LIMIT"),
        ("total += sum(values[1:LIMIT])", "pass"),
        ("total += sum(values[1:LIMIT])", "total -= sum(values[1:LIMIT])"),
        ("self.size = 1.5", "pass"),
        ("return total", "return None"),
        ("low", "(not low)"),
        ("3", "4"),
        ("1.5", "(-1.5)"),
        ("True", "False"),
    ],
)
def test_it_changes(everything, old, new):
    assert (old, new) in {(each.old, each.new) for each in everything}


def test_words_and_types_are_left_alone(everything):
    lines = EVERYTHING.splitlines()
    changed = {lines[each.line - 1].strip() for each in everything}
    untouched = ('"""', "Alias", "__all__", "import ", "if TYPE_CHECKING", 'return f"Box')
    assert not [line for line in changed if line.startswith(untouched)]
    assert not [each for each in everything if "int | None" in each.old]
    # of an error only the statement as a whole is removed
    raised = [each for each in everything if "ValueError" in lines[each.line - 1]]
    assert [(each.kind, each.new) for each in raised] == [("removal", "pass")]


def test_only_the_changed_piece_differs(everything):
    for mutant in everything:
        start, stop = mutant.span
        assert EVERYTHING[start:stop] == mutant.old
        changed = mutant.apply(EVERYTHING)
        assert changed[:start] == EVERYTHING[:start]
        assert changed[start + len(mutant.new) :] == EVERYTHING[stop:]


def test_letters_of_more_than_one_byte_move_nothing():
    (mutant,) = [each for each in mutants_of("a.py", 'x = ("Δ", y + 1)\n') if each.old == "y + 1"]
    assert mutant.apply('x = ("Δ", y + 1)\n') == 'x = ("Δ", (y - 1))\n'


def test_functions_are_named_as_python_names_them(everything):
    names = {each.old: each.function for each in everything}
    assert names["return total"] == "spread"
    assert names["self.size = 1.5"] == "Box.__init__"
    assert names["3"] == ""


def test_kernels_are_known():
    text = "from numba import njit\nN = 2\n@njit(cache=True)\ndef f(x):\n    return x + N\n"
    text += "def g():\n    return 7\n"
    compiled = {each.old: each.compiled for each in mutants_of("a.py", text)}
    assert compiled == {
        "2": True,
        "return x + N": True,
        "x + N": True,
        "return 7": False,
        "7": False,
    }


def test_changes_that_do_not_compile_are_seen():
    text = "f(a, b=[*c])\n"
    (mutant,) = [each for each in mutants_of("a.py", text) if each.kind == "keyword"]
    assert is_another_program(mutant, text)
    broken = type(mutant)(**{**vars(mutant), "new": "f(a"})
    assert not is_another_program(broken, text)


def test_a_sample_is_stratified_and_repeatable():
    chosen = sample(PACKAGE, ROOMS, 100, seed=3)
    assert [sum(each.path.startswith(f"{room}/") for each in chosen) for room in ROOMS] == [20] * 5
    assert len({each.key for each in chosen}) == 100
    assert chosen[20:40] == sample_of_room(PACKAGE, "balancing", 20, seed=3)
    assert chosen != sample(PACKAGE, ROOMS, 100, seed=4)


def test_every_file_and_kind_of_a_room_has_its_turn():
    chosen = sample_of_room(PACKAGE, "routing", 80, seed=0)
    inside = (path.relative_to(PACKAGE) for path in (PACKAGE / "routing").rglob("*.py"))
    files = {str(path) for path in inside if not path.is_relative_to(GPU)}
    mutable = {path for path in files if mutants_of(path, (PACKAGE / path).read_text())}
    assert {each.path for each in chosen} == mutable
    assert {each.kind for each in chosen} == {each.__name__ for each in OPERATORS}
    for mutant in chosen:
        ast.parse(mutant.apply((PACKAGE / mutant.path).read_text()))
