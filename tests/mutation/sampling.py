"""A sample of mutants: as many of each room, of each file by its size, and the kinds in turns.

Kinds take turns because two of five changes that can be made are of a number, and most of those are
of the same few kinds of lines.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from tests.mutation.mutants import Mutant, is_another_program, mutants_of

GPU = "routing/kernels/gpu"
"""left out: only slow tests that fetch triton run these files"""
ROOMS = ("routing", "balancing", "optimum", "theorems", "attach")


def sample(package: Path, rooms: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """`count` mutants, shared evenly by the rooms; a room's do not depend on the other rooms."""
    shares = _shares(dict.fromkeys(rooms, 1), count)
    return [each for room in rooms for each in sample_of_room(package, room, shares[room], seed)]


def sample_of_room(package: Path, room: str, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of a room, of each of its files by the number of changes that it allows."""
    texts = {
        str(path.relative_to(package)): path.read_text(encoding="utf-8")
        for path in sorted((package / room).rglob("*.py"))
        if package / GPU not in path.parents
    }
    possible = {path: mutants_of(path, text) for path, text in texts.items()}
    shares = _shares({path: len(found) for path, found in possible.items() if found}, count)
    chosen = []
    for path, share in shares.items():
        draw = random.Random(f"{seed} {path}")
        chosen += _kinds_in_turns(possible[path], texts[path], share, draw)
    return chosen


def _shares(weights: dict[str, int], count: int) -> dict[str, int]:
    """Whole numbers that add up to count: one for each, the rest by weight, largest remainders."""
    if count < len(weights):
        heaviest = sorted(weights, key=lambda name: (-weights[name], name))[:count]
        return {name: 1 for name in weights if name in heaviest}
    rest, total = count - len(weights), sum(weights.values())
    exact = {name: rest * weight / total for name, weight in weights.items()}
    shares = {name: 1 + int(part) for name, part in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_remainder[: count - sum(shares.values())]:
        shares[name] += 1
    return shares


def _kinds_in_turns(
    found: list[Mutant], text: str, count: int, draw: random.Random
) -> list[Mutant]:
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in found:
        by_kind[mutant.kind].append(mutant)
    piles = list(by_kind.values())
    draw.shuffle(piles)
    for pile in piles:
        draw.shuffle(pile)
    chosen: list[Mutant] = []
    while piles and len(chosen) < count:
        for pile in list(piles):
            while pile and len(chosen) < count:
                mutant = pile.pop()
                if is_another_program(mutant, text):
                    chosen.append(mutant)
                    break
            if not pile:
                piles.remove(pile)
    return chosen
