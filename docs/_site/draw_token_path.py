"""Figure 1, docs/pictures/token-path.svg: a token's way through scores, shift, top-K, gates,
experts, tally and update. Every number in it is computed here, by equipoise.

    python docs/_site/draw_token_path.py

Experts are columns and stages are rows, so that it can be read on a phone: 22 units of text in 720
are 11 pixels in 360. Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

import equipoise

PICTURE = Path(__file__).parents[1] / "pictures" / "token-path.svg"
TOKENS, EXPERTS, TOP_K, RATE = 24, 4, 2, 0.01
COLUMNS = (300, 400, 500, 600)
BAR = 56
STYLE = """
  text { font: 24px system-ui, sans-serif; fill: var(--ink); }
  .stage { font-weight: 600; } .note { font-size: 22px; fill: var(--faint); }
  .value { font-size: 22px; text-anchor: middle; }
  .card { fill: var(--card); stroke: var(--line); }
  .plain { fill: var(--bar); } .chosen { fill: var(--blue); }
  .over { fill: var(--orange); } .under { fill: var(--teal); }
  .on { fill: var(--card); font-weight: 600; }
  .line { stroke: var(--faint); fill: none; stroke-width: 2.5; }
  .rule { stroke: var(--line); stroke-width: 1.5; } .target { stroke: var(--ink); stroke-dasharray: 6 5; }
  .head { fill: var(--faint); }
  :root { --card: #ffffff; --ink: #1d2230; --faint: #626b7c; --line: #c9cfda; --bar: #b9c1cf;
          --blue: #3549b0; --orange: #b4540a; --teal: #0e7a6d; }
  @media (prefers-color-scheme: dark) {
    :root { --card: #1e2129; --ink: #eceff5; --faint: #a3adbe; --line: #4a5262; --bar: #596274;
            --blue: #9dabff; --orange: #f0a35c; --teal: #5cc9b8; }
  }
"""  # noqa: E501


class Step(NamedTuple):
    """What one batch did: the first token's numbers, and the update of the batch's loads."""

    scores: list[float]
    shift: list[float]
    shifted: list[float]
    chosen: list[int]
    gates: list[float]
    loads: list[int]
    moved: list[float]


def one_step() -> Step:
    """A batch under a shift that balances it nearly."""
    logits = torch.tensor([1.2, 0.9, 0.3, -0.3]).repeat(TOKENS, 1)
    noise = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(16))
    noise[0] = 0
    scores = (logits + 1.5 * noise).softmax(-1)
    balancer = equipoise.balancer("deepseek", EXPERTS, top_k=TOP_K, update_rate=RATE)
    before = torch.tensor([-0.20, -0.04, 0.04, 0.20])
    balancer.shift.copy_(before)
    routing = balancer.route(scores)
    balancer.update(balancer.tally(scores, routing))
    return Step(
        scores=scores[0].tolist(),
        shift=before.tolist(),
        shifted=(scores[0] + before).tolist(),
        chosen=sorted(routing.experts[0].tolist()),
        gates=[scores[0, expert].item() for expert in sorted(routing.experts[0].tolist())],
        loads=routing.loads.tolist(),
        moved=(balancer.shift - before).tolist(),
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>'


def bar(column: int, base: float, height: float, kind: str) -> str:
    """From the base up, or down where the height is negative."""
    top = base - max(height, 0)
    left = COLUMNS[column] - BAR / 2
    size = f'width="{BAR}" height="{abs(height):.1f}"'
    return f'<rect x="{left:g}" y="{top:.1f}" {size} class="{kind}"/>'


def stage(y: float, name: str, note: str) -> list[str]:
    return [text(24, y, name, "stage"), text(24, y + 29, note, "note")]


def bars(base: float, values: list[float], kinds: list[str]) -> list[str]:
    drawn = []
    for column, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        drawn += [bar(column, base, 130 * value, kind)]
        drawn += [text(COLUMNS[column], base - max(130 * value, 0) - 8, f"{value:.2f}", "value")]
    return drawn


def shifts(base: float, values: list[float]) -> list[str]:
    """Signed bars about a line, their values on the other side of it."""
    left, right = COLUMNS[0] - 45, COLUMNS[-1] + 45
    drawn = [f'<line x1="{left}" y1="{base}" x2="{right}" y2="{base}" class="rule"/>']
    for column, value in enumerate(values):
        kind = "under" if value > 0 else "over"
        drawn += [bar(column, base, 130 * value, kind)]
        y = base + 25 if value > 0 else base - 8
        drawn += [text(COLUMNS[column], y, signed(value), "value")]
    return drawn


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "\u2212")


def expert_boxes(y: float, step: Step) -> list[str]:
    drawn = []
    for column in range(EXPERTS):
        chosen = column in step.chosen
        left = COLUMNS[column] - 36
        kind = "chosen" if chosen else "card"
        drawn += [f'<rect x="{left}" y="{y}" width="72" height="46" rx="8" class="{kind}"/>']
        name = text(COLUMNS[column], y + 31, f"E{column + 1}", "value on" if chosen else "value")
        drawn += [name]
    return drawn


def gate_values(y: float, step: Step) -> list[str]:
    pairs = zip(step.chosen, step.gates, strict=True)
    return [text(COLUMNS[column], y, f"{gate:.2f}", "value") for column, gate in pairs]


def loads(base: float, step: Step) -> list[str]:
    target, scale = TOKENS * TOP_K / EXPERTS, 3.6
    left, right = COLUMNS[0] - 45, COLUMNS[-1] + 45
    drawn = []
    for column, load in enumerate(step.loads):
        kind = "over" if load > target else "under" if load < target else "plain"
        drawn += [bar(column, base, scale * load, kind)]
        drawn += [text(COLUMNS[column], base + 25, f"{load}", "value")]
    y = base - scale * target
    return [
        *drawn,
        f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="rule target"/>',
    ]


def arrow(path: str, head: str) -> list[str]:
    return [f'<path d="{path}" class="line"/>', f'<path d="{head}" class="head"/>']


def picture(step: Step) -> str:
    names = ["chosen" if column in step.chosen else "plain" for column in range(EXPERTS)]
    moves = ["+u" if move > 0 else "\u2212u" if move < 0 else "0" for move in step.moved]
    gates = list(zip(step.gates, step.chosen, strict=True))
    output = " + ".join(f"{gate:.2f} E{column + 1}(h)" for gate, column in gates)
    parts = [
        *stage(62, "scores", "of token h"),
        *bars(100, step.scores, ["plain"] * EXPERTS),
        *stage(150, "+ shift", "one per expert"),
        *shifts(166, step.shift),
        *stage(252, "= top-K", f"the {TOP_K} greatest"),
        *bars(290, step.shifted, names),
        *stage(344, "gates", "scores, unshifted"),
        *gate_values(358, step),
        *stage(424, "experts", f"{TOP_K} of {EXPERTS} run"),
        *expert_boxes(402, step),
        text(24, 502, "output", "stage"),
        text(COLUMNS[0] - 36, 502, output),
        '<line x1="24" y1="528" x2="696" y2="528" class="rule"/>',
        text(
            24,
            560,
            f"once per batch of {TOKENS} tokens: {TOKENS * TOP_K // EXPERTS} each is even",
            "note",
        ),
        *stage(612, "tally", "tokens each got"),
        *loads(640, step),
        *stage(712, "update", "u = 0.01"),
        *[text(COLUMNS[column], 724, move, "value") for column, move in enumerate(moves)],
        *arrow("M232 70 V351 H246", "M260 351 l-18 -9 v18 z"),
        *arrow("M650 716 H680 V166 H660", "M646 166 l18 -9 v18 z"),
        '<text transform="translate(708 470) rotate(-90)" class="note">for the next batch</text>',
    ]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 762" role="img">',
            "<title>A token's way through a balanced layer</title>",
            "<desc>Scores plus one shift per expert decide the top-K; gates are the unshifted "
            "scores; after the batch shifts of overfull experts fall, those of others rise.</desc>",
            f"<style>{STYLE}</style>",
            '<rect x="1" y="1" width="718" height="760" rx="14" class="card"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(one_step()), encoding="utf-8")
