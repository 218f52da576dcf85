"""Names of layers, as people read them: "model.layers.3.mlp" is layer 3."""

from __future__ import annotations

import re
from collections.abc import Sequence


def layer_number(name: str) -> int | None:
    """The global index of a router's layer: 3 of "model.layers.3.mlp"."""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    return int(numbers[-1]) if numbers else None


def layer_labels(names: Sequence[str]) -> list[str]:
    """Their numbers, where these tell them apart; otherwise the names.

    Example:
        >>> layer_labels(["model.layers.3.mlp", "model.layers.4.mlp"])
        ['3', '4']
    """
    numbers = [layer_number(name) for name in names]
    if None in numbers or len(set(numbers)) < len(numbers):
        return list(names)
    return [str(number) for number in numbers]
