"""The demonstration: every balancer on one stream of skewed, drifting scores, and a table of what
it achieved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from equipoise.arena.replay import replay
from equipoise.arena.streams.stream import DriftingLogits, sampling_floor
from equipoise.balancing import balancer, method_specs

# Those that set a shift before they see a token. Penalties do nothing to scores that do not react,
# and solvers of the batch answer another question (and slowly); all of them can be asked for by
# name.
CAUSAL = tuple(spec.name for spec in method_specs("shift"))


@dataclass(frozen=True)
class Settings:
    balancers: tuple[str, ...]
    steps: int
    tokens: int
    experts: int
    top_k: int
    drift: float
    seed: int

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "experts", "top_k"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}"
                )
        for name in self.balancers:
            balancer(
                name, self.experts, top_k=self.top_k
            )  # a wrong name or size is told before anything runs

    @property
    def stream(self) -> DriftingLogits:
        return DriftingLogits(
            self.tokens, self.experts, self.steps, drift=self.drift, seed=self.seed
        )

    @property
    def floor(self) -> float:
        return sampling_floor(self.tokens, self.experts, self.top_k)


class Row(NamedTuple):
    balancer: str
    first_imbalance: float
    final_imbalance: float
    """mean over the last third"""
    over_floor: float
    """final imbalance as a multiple of what chance alone leaves"""
    final_max_violation: float
    steps_to_floor: int | None
    """the first step with an imbalance within twice the floor"""


def run(settings: Settings, on_step: Callable[[], None] = lambda: None) -> Iterator[Row]:
    """A row for every balancer, as soon as it is done."""
    for name in settings.balancers:
        history = []
        for measured in replay(
            settings.stream, balancer(name, settings.experts, top_k=settings.top_k)
        ):
            history.append(measured)
            on_step()
        yield _summary(name, history, settings.floor)


def _summary(name: str, history: list[dict[str, float]], floor: float) -> Row:
    last = history[-max(1, len(history) // 3) :]
    final = sum(measured["imbalance"] for measured in last) / len(last)
    near = (n for n, measured in enumerate(history) if measured["imbalance"] <= 2 * floor)
    return Row(
        balancer=name,
        first_imbalance=history[0]["imbalance"],
        final_imbalance=final,
        over_floor=final / floor if floor else float("inf"),
        final_max_violation=sum(measured["max_violation"] for measured in last) / len(last),
        steps_to_floor=next(islice(near, 1), None),
    )


def show(settings: Settings) -> None:
    """Run with a progress bar, then print the table."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console()
    console.print(
        f"{settings.steps} batches of {settings.tokens:,} tokens; each takes {settings.top_k} of "
        f"{settings.experts} experts. "
        f"Some experts are liked more than others, and that drifts by {settings.drift} a step."
    )
    with Progress(console=console, transient=True) as progress:
        job = progress.add_task("balancing", total=len(settings.balancers) * settings.steps)
        rows = list(run(settings, on_step=lambda: progress.advance(job)))
    console.print(_table(settings, rows))


def _table(settings: Settings, rows: list[Row]) -> object:
    from rich.table import Table

    table = Table(
        title="How uneven the experts' loads are",
        caption="imbalance: mean |load - target| / target; final: mean of the last third of the "
        "steps; floor: "
        f"{settings.floor:.4f}, what chance alone leaves; max violation: fullest expert's load / "
        "target - 1",
    )
    table.add_column("balancer", no_wrap=True, min_width=12)
    for heading in (
        "first imbalance",
        "final imbalance",
        "over the floor",
        "max violation",
        "steps to 2x floor",
    ):
        table.add_column(heading, justify="right")
    best = min(row.final_imbalance for row in rows)
    for row in rows:
        table.add_row(
            row.balancer,
            f"{row.first_imbalance:.4f}",
            f"{row.final_imbalance:.4f}",
            f"{row.over_floor:.2f}x",
            f"{row.final_max_violation:.3f}",
            "-" if row.steps_to_floor is None else str(row.steps_to_floor),
            style="bold green" if row.final_imbalance == best else "",
        )
    return table
