"""How long the command takes to start: each against `import torch` in the same round, and what each
imports.

    python benchmarks/bench_start.py [--rounds 5]

Aims: the list of verbs within 0.3 s, everything that needs no tensors within 1.5 s. What is
compared is processor time, which neighbours on the machine lengthen less than the clock's; the
least of the rounds is shown of both.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

COMMANDS = {
    "--help": 0.3,
    "help train": 1.5,
    "train --help": 1.5,
    "plan deepseekmoe-1b": 1.5,
    "report no-such-folder": 1.5,
    "solve no-such-file.npy --top-k 2": 1.5,
    "verify no-such-folder": 1.5,
}
"""what follows `equipoise`, and the seconds it may take"""
MOST_SHOWN = 5
"""imports of a command in the profile"""


class Cost(NamedTuple):
    """Of one process, from its start to its end."""

    processor: float
    clock: float


def run_process(*words: str) -> Cost:
    """Run Python with these words; what it prints is thrown away."""
    before, begin = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], capture_output=True)
    after, end = os.times(), time.perf_counter()
    used = after.children_user + after.children_system
    return Cost(used - before.children_user - before.children_system, end - begin)


def dearest_imports(words: list[str]) -> list[tuple[str, float]]:
    """The packages whose import takes longest, with all that they import, in seconds."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "equipoise", *words],
        capture_output=True,
        text=True,
    )
    lines = re.findall(r"^import time: +\d+ \| +(\d+) \| +(\S+)$", run.stderr, flags=re.MULTILINE)
    by_package: dict[str, float] = {}
    for microseconds, module in lines:
        package = ".".join(module.split(".")[: 3 if module.startswith("equipoise") else 1])
        by_package[package] = max(by_package.get(package, 0.0), int(microseconds) / 1e6)
    return sorted(by_package.items(), key=lambda each: -each[1])[:MOST_SHOWN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch_costs: list[Cost] = []
    costs: dict[str, list[Cost]] = {command: [] for command in COMMANDS}
    # the first time of all reads files from the disk
    run_process("-c", "import torch")
    for _ in range(rounds):
        torch_costs.append(run_process("-c", "import torch"))
        for command, found in costs.items():
            found.append(run_process("-m", "equipoise", *command.split()))
    show_costs(costs, torch_costs)
    print()
    for command in costs:
        imports = ", ".join(
            f"{name} {seconds:.2f}" for name, seconds in dearest_imports([*command.split()])
        )
        print(f"equipoise {command}: {imports}")


def show_costs(costs: dict[str, list[Cost]], torch_costs: list[Cost]) -> None:
    table = Table("command", "CPU, s", "aim, s", "clock, s", "share of `import torch`", box=None)
    rows = {"python -c 'import torch'": torch_costs} | {
        f"equipoise {c}": f for c, f in costs.items()
    }
    for name, found in rows.items():
        aim = COMMANDS.get(name.removeprefix("equipoise "))
        shares = [one.processor / other.processor for one, other in zip(found, torch_costs)]
        table.add_row(
            name,
            f"{min(each.processor for each in found):.2f}",
            "" if aim is None else f"{aim:g}",
            f"{min(each.clock for each in found):.2f}",
            f"{statistics.median(shares):.2f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
