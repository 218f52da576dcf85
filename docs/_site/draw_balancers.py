"""A small figure of every balancer on the same stream, docs/pictures/balancers/NAME.svg.

    python docs/_site/draw_balancers.py              # all of them
    python docs/_site/draw_balancers.py deepseek     # some

Imbalance by step on a logarithmic axis, beside no balancing and what chance alone leaves. A rule
with a rate runs at the best of the rates that the arena tries. A penalty acts through gradients:
for it a bias of the logits is trained by Adam, as a router's own would be.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

import equipoise
from equipoise.arena.replay import replay
from equipoise.arena.streams.synthetic import Drift, Skew, Swap, Synthetic
from equipoise.balancing import MethodSpec, method_spec, method_specs

PICTURES = Path(__file__).parents[1] / "pictures" / "balancers"
STREAM = Synthetic(
    name="figure",
    popularity=(Skew(), Drift(0.01), Swap(at=80)),
    num_tokens=1024,
    num_experts=16,
    top_k=2,
    steps=120,
)
WIDTH, HEIGHT, LEAST, GREATEST = 180, 64, 0.02, 2.0
STYLE = """
  .card { fill: #fff; stroke: #c9cfda; } .none { stroke: #a9b1bf; } .own { stroke: #3549b0; }
  .floor { stroke: #b4540a; stroke-dasharray: 3 3; } path { fill: none; stroke-width: 1.6; }
  text { font: 12px system-ui, sans-serif; fill: #1d2230; text-anchor: end; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1e2129; stroke: #4a5262; } .none { stroke: #6b7485; } .own { stroke: #9dabff; }
    .floor { stroke: #f0a35c; } text { fill: #eceff5; }
  }
"""


class Course(NamedTuple):
    """The imbalance of every step, at the rate that was best (None: there is no rate)."""

    imbalance: list[float]
    rate: float | None

    @property
    def last_third(self) -> float:
        late = self.imbalance[-len(self.imbalance) // 3 :]
        return sum(late) / len(late)


@functools.cache
def best_course(spec: MethodSpec) -> Course:
    """Of the rates that the arena would try."""
    courses = [Course(imbalance_at(spec, rate), rate) for rate in spec.rates_to_try or (None,)]
    return min(courses, key=lambda course: sum(course.imbalance))


def imbalance_at(spec: MethodSpec, rate: float | None) -> list[float]:
    options = spec.options_at(rate)
    if spec.within_sequences:
        # the stream's tokens are independent: any length will do
        options = {**options, "sequence_length": 256}
    balancer = spec.make(STREAM.num_experts, STREAM.top_k, **options)
    if spec.kind == "penalty":
        return list(trained_bias(balancer))
    return [row["imbalance"] for row in replay(batches(), balancer)]


@functools.cache
def batches() -> list[torch.Tensor]:
    return [STREAM.batch(step).scores for step in range(STREAM.steps)]


def trained_bias(balancer: equipoise.Balancer) -> Iterator[float]:
    """Imbalance where nothing but the penalty trains a bias of the router's logits."""
    bias = torch.zeros(STREAM.num_experts, requires_grad=True)
    optimizer = torch.optim.Adam([bias], lr=0.02)
    for batch in batches():
        logits = batch.log() + bias
        scores = logits.softmax(-1)
        routing = balancer.route(scores)
        optimizer.zero_grad()
        balancer.penalty(scores, routing, logits=logits).backward()
        optimizer.step()
        balancer.update(balancer.tally(scores.detach(), routing))
        yield equipoise.metrics(routing.loads)["imbalance"]


def floor() -> float:
    """What chance leaves on independent tokens (docs/notation.md)."""
    share = STREAM.top_k / STREAM.num_experts
    return math.sqrt(2 / math.pi * (1 - share) / (STREAM.num_tokens * share))


def height_of(imbalance: float) -> float:
    inside = min(max(imbalance, LEAST), GREATEST)
    share = math.log(inside / LEAST) / math.log(GREATEST / LEAST)
    return HEIGHT - 5 - share * (HEIGHT - 10)


def line(imbalance: list[float], kind: str) -> str:
    apart = (WIDTH - 50) / (len(imbalance) - 1)
    points = [
        f"{6 + step * apart:.1f} {height_of(each):.1f}" for step, each in enumerate(imbalance)
    ]
    return f'<path class="{kind}" d="M{" L".join(points)}"/>'


def figure(spec: MethodSpec) -> str:
    course = best_course(spec)
    title = f"{spec.name}: imbalance over {STREAM.steps} steps"
    at_rate = "" if course.rate is None else f", at a rate of {course.rate:g}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img">',
            f"<title>{title}{at_rate}</title>",
            f"<style>{STYLE}</style>",
            f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="5" class="card"/>',
            line(best_course(method_spec("none")).imbalance, "none"),
            line([floor()] * 2, "floor"),
            line(course.imbalance, "own"),
            f'<text x="{WIDTH - 6}" y="{height_of(course.last_third) + 4:.1f}">'
            f"{course.last_third:.2f}</text>",
            "</svg>\n",
        ]
    )


def main(names: list[str]) -> None:
    PICTURES.mkdir(exist_ok=True)
    for spec in [method_spec(name) for name in names] or method_specs():
        (PICTURES / f"{spec.name}.svg").write_text(figure(spec), encoding="utf-8")
        course = best_course(spec)
        print(f"{spec.name:15} rate {course.rate}  last third {course.last_third:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
