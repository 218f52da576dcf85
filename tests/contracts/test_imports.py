"""The tree's directions: imports only go down. A new room is a new line here, and in
docs/decisions.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "equipoise"
THEORY = {"storage", "trace", "results", "report", "optimum", "expected", "theorems", "watch"}
THEORY |= {"drawing", "selection", "placement", "costs"}
PRACTICE = {"routing", "balancing", "layers", "model", "training", "attach"}

# room -> the rooms it may import
BELOW = {
    "storage": set(),
    "trace": {"storage"},
    "results": {"storage", "trace"},
    "drawing": {"storage", "results"},
    "costs": {"storage"},
    "selection": {"storage"},
    "optimum": {"storage", "selection"},
    "expected": {"storage", "optimum"},
    "theorems": {"storage", "trace", "optimum", "expected"},
    "placement": {"storage", "trace", "drawing", "selection"},
    "routing": {"storage", "selection"},
    "tracking": {"storage", "drawing", "routing"},
    "balancing": {"storage", "routing"},
    "layers": {"storage", "balancing", "routing"},
    "model": {"storage", "layers", "balancing", "routing"},
    "training": {
        "storage",
        "trace",
        "results",
        "tracking",
        "model",
        "layers",
        "balancing",
        "routing",
    },
    "attach": {"storage", "trace", "layers", "balancing", "routing"},
}
EVERYTHING_BELOW = set(BELOW)
BELOW |= dict.fromkeys(("arena", "experiments", "report", "integrations"), EVERYTHING_BELOW)
BELOW["simulation"] = EVERYTHING_BELOW | {"arena", "experiments"}
BELOW["watch"] = {"storage", "trace", "results", "report"}
ENTRANCES = {"__init__", "__main__", "_moved", "cli"}  # these may import anything

FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def offences(path, text):
    room = room_of(path)
    for module in imported_modules(ast.parse(text)):
        parts = module.split(".")
        if parts[0] in ("torch", "transformers") and room in THEORY:
            yield f"the theory imports {parts[0]}"
        if parts[0] == "numba" and room in PRACTICE:
            yield "the practice imports numba"
        if parts[0] != "equipoise" or room in ENTRANCES:
            continue
        if len(parts) == 1:
            yield "only the entrances import equipoise itself"
        elif parts[1] not in {room} | BELOW[room]:
            yield f"{room} imports {parts[1]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    room = room_of(path)
    assert room in BELOW or room in ENTRANCES, f"the room {room!r} is not in the design"
    assert list(offences(path, path.read_text())) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("routing/route.py", "from equipoise.balancing import Balancer"),
        ("routing/route.py", "import equipoise"),
        ("optimum/solve.py", "import torch"),
        ("theorems/statements/regret.py", "from equipoise.routing import route"),
        ("balancing/shift/dual.py", "import numba"),
        ("trace/reader.py", "from equipoise import routing"),
    ],
)
def test_wrong_directions_are_seen(file, line):
    assert list(offences(PACKAGE / file, line)) != []


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda path: path.name)
def test_the_command_imports_late(path):
    tree = ast.parse(path.read_text())
    top = {
        name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported_modules(node)
    }
    assert {name.split(".")[1] for name in top if name.startswith("equipoise.")} <= {
        "storage",
        "cli",
    }
