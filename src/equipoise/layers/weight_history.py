"""WeightHistory: what a router's weights were some steps ago, for anticipatory routing.

Experts are chosen by weights of n steps ago, and gates are of today's. So the choice of a batch is
known n steps before it is trained on, and does not move with the step that is being taken. As long
as there are fewer than n steps, the first weights stand in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from torch import Tensor


class WeightHistory:
    """The last n + 1 values of some tensors.

    Args:
        steps: n.
    """

    def __init__(self, steps: int) -> None:
        self._kept: deque[list[Tensor]] = deque(maxlen=check_look_back(steps) + 1)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Keep copies of today's values."""
        self._kept.append([tensor.detach().clone() for tensor in tensors])

    @property
    def oldest(self) -> list[Tensor]:
        """Those of n steps ago, or the first."""
        return self._kept[0]


def check_look_back(steps: int) -> int:
    """Refuse what is no number of steps."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"anticipate is a number of steps, 0 or more, not {steps!r}")
    return steps
