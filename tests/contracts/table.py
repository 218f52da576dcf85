"""The contract's rows: every balancer, and the laws it is excused from. A new method has a row by
itself; it needs one here only for other options, or where a law cannot hold for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

import equipoise
from equipoise.balancing import Balancer, Dual, MethodSpec, method_specs
from equipoise.routing import Routing, Tally

NUM_EXPERTS, TOP_K, NUM_TOKENS = 16, 3, 160  # T K / E = 30: balance is possible


@dataclass(frozen=True)
class Row:
    name: str
    options: dict[str, object] = field(default_factory=dict)
    moves_when_balanced: bool = False
    """the others: they average over steps, or look at more than loads"""
    samples: bool = False
    """part of its tally looks at every 8th token of a forward: cuts must fall between eights, and
    padding takes places. Without the option `stride` all its laws hold up to 128 choices per expert
    and forward
    """
    solves: bool = False
    """a sum over experts in another order rounds otherwise, in the last digit"""
    rounds: bool = False
    """its scores are lowered by quantiles, so that sums with a shift round in the last digit"""
    follows: bool = False
    """flat scores are sequences of 8 tokens: cuts must fall between them, and none be left out"""
    moves: bool = True
    """whether unbalanced loads move its shift"""
    blocks: bool = False
    """experts share numbers by where they stand: relabelled, they are on other devices. What holds
    instead is in tests/balancing/test_per_device.py
    """

    def __str__(self) -> str:
        return self.name + "".join(f"-{key}" for key in self.options)

    def make(self) -> Balancer:
        return equipoise.balancer(self.name, NUM_EXPERTS, top_k=TOP_K, **self.options)


# Solvers of the batch itself. They have no shift, so laws about shifts do not apply, and each cut
# of a batch is solved on its own, so neither do those about micro-batches and ranks. What does
# apply is in test_solvers.py.
SOLVERS = [Row(spec.name) for spec in method_specs("batch solver")]

# A token has as many experts as want it: laws about K, about a shift that may drift by a constant
# and about cuts into other shapes do not apply. What does apply is in test_thresholds.py.
THRESHOLDS = [Row(spec.name) for spec in method_specs("threshold")]

UNEQUAL = [2.0] * 4 + [1.0] * 12

_LISTED = [
    Row("none", moves=False),
    Row("deepseek"),
    Row("deepseek", {"target": UNEQUAL}),
    Row("proportional"),
    Row("moonlight"),
    Row("smebu", moves_when_balanced=True),
    Row("inverse"),
    Row("inverse", {"unit": "counts", "update_rate": 1e-3}),
    Row("inverse_sqrt"),
    Row("mirror"),
    Row("adagrad"),
    Row("quantile", moves_when_balanced=True),
    Row("quantile", {"ema": 0.5, "target": UNEQUAL}, moves_when_balanced=True),
    Row("curvature", {"stride": 8}, moves_when_balanced=True, samples=True, solves=True),
    Row("per_device", moves_when_balanced=True, solves=True, blocks=True),
    Row(
        "per_device",
        {"devices": 4, "target": UNEQUAL},
        moves_when_balanced=True,
        solves=True,
        blocks=True,
    ),
    Row("aux", moves=False),
    Row("aux", {"scope": "global", "target": UNEQUAL}, moves=False),
    Row("z_loss", moves=False),
    Row("phi", moves=False),
    Row("phi", {"potential": "euclidean", "target": UNEQUAL}, moves=False),
    Row("moving_quantile", {"sequence_length": 1}, moves_when_balanced=True, rounds=True),
    Row(
        "moving_quantile",
        {"sequence_length": 8, "strength": 1.0, "target": UNEQUAL},
        moves_when_balanced=True,
        rounds=True,
        follows=True,
    ),
    # so few tokens that it looks at every one
    Row("curvature", {"target": UNEQUAL}, moves_when_balanced=True, solves=True),
]


def unlisted_row(spec: MethodSpec) -> Row:
    """A method that has no row above must keep all laws but those that it excuses itself from."""
    made = spec.make(NUM_EXPERTS, TOP_K)
    excused = isinstance(made, Dual) and made.moves_when_balanced
    return Row(spec.name, moves_when_balanced=excused, moves=spec.kind == "shift")


ROWS = _LISTED + [
    unlisted_row(spec)
    for spec in (*method_specs("shift"), *method_specs("penalty"))
    if spec.name not in {row.name for row in _LISTED}
]


def exact_scores(num_tokens: int = NUM_TOKENS, seed: int = 0, levels: int = 4096) -> Tensor:
    """Scores in (0, 1) without ties within a token, multiples of 1/levels: float32 holds them, and
    their sums, exactly.

    Low experts score higher, so that there is something to balance.
    """
    rng = torch.Generator().manual_seed(seed)
    popularity = torch.linspace(0.3, 0.0, NUM_EXPERTS)
    raw = torch.rand(num_tokens, NUM_EXPERTS, generator=rng) * 0.6 + popularity
    whole = (raw * levels).round().long().clamp(1, levels - 1)
    while True:
        ordered, order = whole.sort(1)
        tied = torch.zeros_like(whole).scatter(1, order[:, 1:], (ordered.diff(dim=1) == 0).long())
        if not tied.any():
            return whole.float() / levels
        moved = torch.randint(1, levels, whole.shape, generator=rng)
        whole = torch.where(tied.bool(), moved, whole)


def exact_shift(seed: int = 0) -> Tensor:
    """A shift of both signs whose sums with exact scores are exact too, and never tie them: odd
    multiples of 2^-14.
    """
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randperm(NUM_EXPERTS, generator=rng) * 64 + torch.arange(NUM_EXPERTS)
    ) / 2**14 - 0.03125


def forward(
    balancer: Balancer, scores: Tensor, mask: Tensor | None = None
) -> tuple[Routing, Tally]:
    routing = balancer.route(scores, mask=mask)
    return routing, balancer.tally(scores, routing)


def train(balancer: Balancer, steps: int, first_seed: int = 100) -> None:
    for step in range(steps):
        balancer.update(forward(balancer, exact_scores(seed=first_seed + step))[1])


def assert_same_tally(left: Tally, right: Tally) -> None:
    assert torch.equal(left.loads, right.loads)
    assert torch.equal(left.step, right.step)
    assert left.parts.keys() == right.parts.keys()
    assert all(torch.equal(part, right.parts[name]) for name, part in left.parts.items())


def assert_same_state(left: Balancer, right: Balancer) -> None:
    mine, theirs = left.state_dict(), right.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), f"{name}: {value} and {theirs[name]}"
