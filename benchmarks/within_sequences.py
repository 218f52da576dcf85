"""What even loads within sequences cost: affinity on streams, and loss in trainings.

    python benchmarks/within_sequences.py frontier --out results/within          two minutes
    python benchmarks/within_sequences.py draw --out results/within              its picture
    python benchmarks/within_sequences.py train --out results/within             half an hour
    python benchmarks/within_sequences.py cost                                   seconds

`frontier` replays streams with sequences under `moving_quantile` at each strength: how much the
fullest expert of a sequence has over its share (the mean over sequences), and how much of the exact
optimum's affinity is kept. Beside it stands the most that can be kept where every sequence is even
by itself, solved exactly, sequence by sequence, which no rule that decides token by token can know.

`train` trains `tiny` at each strength and seed, and measures both on the validation set. Strength 0
is `quantile` itself. Runs that are in the folder already are not repeated. `cost` is the time of
the quantiles as a multiple of the top-K's in the same process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import race
from torch import Tensor

import equipoise
from equipoise.arena.streams.catalogue import SYNTHETIC
from equipoise.arena.streams.stream import Stream
from equipoise.routing import load_metrics
from equipoise.training.evaluation import loads_by_sequence
from equipoise.training.open_run import open_run

STRENGTHS = (0.0, 0.1, 0.3, 0.6, 1.0)
TRAINED = (0.0, 0.3, 1.0)
SOLVED = 4
"""the last batches of a stream, which are judged"""


def streams() -> Iterator[Stream]:
    """Streams whose sequences have experts that they like."""
    softmax = dataclasses.replace(SYNTHETIC["sequences"], steps=30, name="softmax, 128 tokens")
    sigmoid = dataclasses.replace(softmax, name="sigmoid, 128 tokens", score="sigmoid")
    long = dataclasses.replace(sigmoid, name="sigmoid, 1024 tokens", block=1024)
    return iter((sigmoid, long, softmax))


def sequence_violation(experts: Tensor, sequences: int, num_experts: int) -> float:
    """Max violation of each sequence's own loads, the mean over sequences."""
    chosen = experts.reshape(sequences, -1)
    loads = torch.stack([row.bincount(minlength=num_experts) for row in chosen])
    return float(load_metrics(loads)["max_violation"].mean())


def chance_violation(length: int, num_experts: int, top_k: int, draws: int = 2000) -> float:
    """What is left where every token takes experts by chance, all equally likely."""
    rng = torch.Generator().manual_seed(0)
    chosen = torch.rand(draws, length, num_experts, generator=rng).topk(top_k).indices
    return sequence_violation(chosen, draws, num_experts)


def affinity(scores: Tensor, experts: Tensor) -> float:
    return float(scores.gather(1, experts).double().sum())


def replay(stream: Stream, strength: float) -> list[tuple[float, float, float]]:
    """(violation within sequences, imbalance of the batch, affinity) of the last batches."""
    assert stream.block is not None
    rule = equipoise.balancer(
        "moving_quantile", stream.num_experts, top_k=stream.top_k, strength=strength,
        sequence_length=stream.block,
    )  # fmt: skip
    found = []
    for step, batch in enumerate(stream):
        routing = rule.route(batch.scores)
        rule.update(rule.tally(batch.scores, routing))
        if step >= stream.steps - SOLVED:
            sequences = stream.num_tokens // stream.block
            violation = sequence_violation(routing.experts, sequences, stream.num_experts)
            imbalance = equipoise.metrics(routing.loads)["imbalance"]
            found.append((violation, imbalance, affinity(batch.scores, routing.experts)))
    return found


def best_affinity(stream: Stream, block: int) -> list[float]:
    """The greatest affinity where every `block` tokens are even by themselves."""
    return [
        sum(
            equipoise.solve(part.numpy(), stream.top_k).value
            for part in stream.batch(step).scores.split(block)
        )
        for step in range(stream.steps - SOLVED, stream.steps)
    ]


def frontier(out: Path) -> None:
    rows = []
    for stream in streams():
        assert stream.block is not None
        whole = np.array(best_affinity(stream, stream.num_tokens))
        shares = np.array(best_affinity(stream, stream.block)) / whole
        chance = chance_violation(stream.block, stream.num_experts, stream.top_k)
        name = {"stream": stream.name, "chance": chance}
        rows.append({**name, "strength": "exact", "violation": 0.0, "affinity": shares.mean()})
        for strength in STRENGTHS:
            found = np.array(replay(stream, strength))
            kept = found[:, 2] / whole
            figures = {"violation": found[:, 0].mean(), "imbalance": found[:, 1].mean()}
            rows.append({**name, "strength": strength, **figures, "affinity": kept.mean()})
            print(rows[-1], flush=True)
    (out / "frontier.json").write_text(json.dumps(rows, indent=1))
    print("\n| stream | strength | fullest expert of a sequence | batch | affinity kept |")
    print("|---|---|---|---|---|")
    for row in rows:
        batch = f"{row['imbalance']:.3f}" if "imbalance" in row else ""
        print(
            f"| {row['stream']} | {row['strength']} | +{row['violation']:.2f} "
            f"| {batch} | {row['affinity']:.2%} |"
        )


def train_and_measure(out: Path, score: str, strength: float, seed: int, steps: int) -> None:
    folder = out / f"{score}-{strength:g}-{seed}-{steps}"
    done = folder / "within.json"
    if done.exists():
        return
    config = equipoise.preset(
        "tiny", balancer="moving_quantile", balancer_options={"strength": strength}, seed=seed,
        steps=steps, out=str(folder), trace_every=0, evaluate_every=0, log_to="none", resume=True,
        model={"score": score},
    )  # fmt: skip
    equipoise.train(config)
    done.write_text(
        json.dumps({"score": score, "strength": strength, "seed": seed, **measure(folder)})
    )
    print(done.read_text(), flush=True)


@torch.no_grad()
def measure(folder: Path) -> dict[str, float]:
    """Loss, imbalance and violation within sequences on the validation set."""
    run = open_run(folder)
    trainer, sizes = run.trainer, run.config.model
    run.model.eval()
    loads, losses = [], []
    for tokens, targets, _ in trainer._validation_inputs():
        output = run.model(tokens, targets)
        losses += [float(output.loss)] * len(tokens)
        loads.append(loads_by_sequence(output.routings, len(tokens), sizes.num_experts))
    every = torch.cat(loads)
    return {
        "loss": float(np.mean(losses)),
        "imbalance": float(load_metrics(every.sum(0))["imbalance"].mean()),
        "violation": float(load_metrics(every)["max_violation"].mean()),
    }


def trainings(out: Path, scores: Sequence[str], seeds: Sequence[int], steps: int) -> None:
    for score in scores:
        for seed in seeds:
            for strength in TRAINED:
                train_and_measure(out, score, strength, seed, steps)
    found = [json.loads(path.read_text()) for path in sorted(out.glob(f"*-{steps}/within.json"))]
    print("\n| score | strength | loss, against 0 on the same seed | sequence | batch |")
    print("|---|---|---|---|---|")
    for score in scores:
        for strength in TRAINED:
            print(training_row([row for row in found if row["score"] == score], strength))


def training_row(rows: list[dict[str, float]], strength: float) -> str:
    """One line: means over seeds, the loss as a difference of pairs with its standard error."""
    mine = {row["seed"]: row for row in rows if row["strength"] == strength}
    base = {row["seed"]: row for row in rows if row["strength"] == 0}
    change = [mine[seed]["loss"] - base[seed]["loss"] for seed in mine.keys() & base.keys()]
    error = np.std(change, ddof=1) / len(change) ** 0.5 if len(change) > 1 else float("nan")
    mean = {
        key: np.mean([row[key] for row in mine.values()])
        for key in ("loss", "violation", "imbalance")
    }
    return (
        f"| {rows[0]['score']} | {strength:g} | {mean['loss']:.4f} ({np.mean(change):+.4f} "
        f"± {error:.4f}) | +{mean['violation']:.2f} | {mean['imbalance']:.3f} |"
    )


def draw(out: Path) -> None:
    """frontier.svg: a panel for each stream."""
    rows = json.loads((out / "frontier.json").read_text())
    names = list(dict.fromkeys(row["stream"] for row in rows))
    panels = [
        draw_panel([row for row in rows if row["stream"] == name], 60 + 330 * place)
        for place, name in enumerate(names)
    ]
    width = 60 + 330 * len(names)
    (out / "frontier.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 330" width="{width}" '
        'height="330" font-family="sans-serif" font-size="13" fill="#222">'
        f'<rect width="{width}" height="330" fill="white"/>'
        '<text x="16" y="165" transform="rotate(-90 16 165)" text-anchor="middle">'
        "affinity kept, of the exact optimum</text>"
        f'<text x="{width / 2}" y="320" text-anchor="middle">'
        "fullest expert of a sequence, above its share (numbers: strength)</text>"
        + "".join(panels)
        + "</svg>\n"
    )


def draw_panel(rows: list[dict[str, Any]], left: float) -> str:
    """One stream: the path of strengths, the exact even sequences, and what chance leaves."""

    def place(violation: float, kept: float) -> tuple[float, float]:
        return left + 20 + violation / 5.2 * 270, 40 + (1.02 - kept) / 0.26 * 235

    exact, *others = rows
    points = [place(row["violation"], row["affinity"]) for row in others]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = [f'<text x="{left + 155}" y="24" text-anchor="middle">{exact["stream"]}</text>']
    for kept in (0.8, 0.85, 0.9, 0.95, 1.0):
        _, y = place(0, kept)
        marks.append(f'<path d="M{left + 20} {y:.1f}h280" stroke="#e3e5e8"/>')
        marks.append(f'<text x="{left + 14}" y="{y + 4:.1f}" text-anchor="end">{kept:.0%}</text>')
    for violation in range(6):
        x, _ = place(violation, 0)
        marks.append(f'<text x="{x:.1f}" y="294" text-anchor="middle">+{violation}</text>')
    chance, _ = place(exact["chance"], 0)
    marks.append(f'<path d="M{chance:.1f} 40v235" stroke="#8a8f99" stroke-dasharray="4 4"/>')
    marks.append(f'<text x="{chance + 5:.1f}" y="52" fill="#6b7078">chance alone</text>')
    marks.append(f'<polyline points="{path}" fill="none" stroke="#2a7fd4" stroke-width="2"/>')
    for (x, y), row in zip(points, others, strict=True):
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="#2a7fd4"/>')
        below = 20 if row["strength"] else -10
        marks.append(f'<text x="{x - 3:.1f}" y="{y + below:.1f}">{row["strength"]:g}</text>')
    x, y = place(0, exact["affinity"])
    marks.append(f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="#d98200"/>')
    marks.append(f'<text x="{x + 9:.1f}" y="{y - 8:.1f}" fill="#9a5c00">exact</text>')
    return "".join(marks)


def cost(rounds: int = 30) -> None:
    """The time of the quantiles over that of a top-K, in the same rounds."""
    print("| tokens | experts | K | quantiles / top-K | state of a sequence |")
    print("|---|---|---|---|---|")
    for experts, top_k in ((64, 6), (256, 8)):
        ratio = quantiles_over_top_k(torch.rand(8, 512, experts), top_k, rounds)
        print(f"| 4,096 | {experts} | {top_k} | {ratio:.1f} | {experts * 100 * 8 / 1000:.0f} kB |")


def quantiles_over_top_k(scores: Tensor, top_k: int, rounds: int) -> float:
    moving = equipoise.balancer("moving_quantile", scores.shape[-1], top_k=top_k).moving
    plain = equipoise.balancer("quantile", scores.shape[-1], top_k=top_k)
    contestants = {
        "top-K": lambda: plain.route(scores),
        "quantiles": lambda: moving.lowered_scores(scores),
    }
    return race(contestants, rounds)["quantiles"].ratio.median


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("frontier", "draw", "train", "cost"))
    parser.add_argument("--out", type=Path, default=Path("results/within"))
    parser.add_argument("--scores", nargs="+", default=["sigmoid"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "train":
        trainings(options.out, options.scores, options.seeds, options.steps)
    elif options.what == "cost":
        cost()
    else:
        {"frontier": frontier, "draw": draw}[options.what](options.out)


if __name__ == "__main__":
    main()
