"""What even loads within sequences cost: affinity on streams, and loss in trainings.

    python benchmarks/within_sequences.py frontier --out results/within          two minutes
    python benchmarks/within_sequences.py train --out results/within             half an hour

`frontier` replays streams with sequences under `moving_quantile` at each strength: how much the
fullest expert of a sequence has over its share (the mean over sequences), and how much of the exact
optimum's affinity is kept. Beside it stands the most that can be kept where every sequence is even
by itself, solved exactly, sequence by sequence, which no rule that decides token by token can know.

`train` trains `tiny` at each strength and seed, and measures both on the validation set. Strength 0
is `quantile` itself. Runs that are in the folder already are not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
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


def streams() -> Iterator[tuple[Stream, float]]:
    """Streams with sequences, and what the histograms reach to."""
    base = dataclasses.replace(SYNTHETIC["sequences"], steps=30)
    sigmoid = dataclasses.replace(base, name="sigmoid, 128 tokens", score="sigmoid")
    yield sigmoid, 1.0
    yield dataclasses.replace(sigmoid, name="sigmoid, 1024 tokens", block=1024), 1.0
    yield dataclasses.replace(base, name="softmax, 128 tokens"), 1.0
    yield dataclasses.replace(base, name="softmax, 128 tokens"), 0.1


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


def replay(stream: Stream, strength: float, reach: float) -> list[tuple[float, float, float]]:
    """(violation within sequences, imbalance of the batch, affinity) of the last batches."""
    assert stream.block is not None
    rule = equipoise.balancer(
        "moving_quantile", stream.num_experts, top_k=stream.top_k, strength=strength, reach=reach,
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
    for stream, reach in streams():
        assert stream.block is not None
        whole = np.array(best_affinity(stream, stream.num_tokens))
        shares = np.array(best_affinity(stream, stream.block)) / whole
        chance = chance_violation(stream.block, stream.num_experts, stream.top_k)
        name = {"stream": stream.name, "reach": reach, "chance": chance}
        rows.append({**name, "strength": "exact", "violation": 0.0, "affinity": shares.mean()})
        for strength in STRENGTHS:
            found = np.array(replay(stream, strength, reach))
            kept = found[:, 2] / whole
            figures = {"violation": found[:, 0].mean(), "imbalance": found[:, 1].mean()}
            rows.append({**name, "strength": strength, **figures, "affinity": kept.mean()})
            print(rows[-1], flush=True)
    (out / "frontier.json").write_text(json.dumps(rows, indent=1))
    print("\n| stream | reach | strength | fullest expert of a sequence | batch | affinity kept |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        batch = f"{row['imbalance']:.3f}" if "imbalance" in row else ""
        print(
            f"| {row['stream']} | {row['reach']:g} | {row['strength']} | +{row['violation']:.2f} "
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("frontier", "train"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scores", nargs="+", default=["sigmoid"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "frontier":
        frontier(options.out)
    else:
        trainings(options.out, options.scores, options.seeds, options.steps)


if __name__ == "__main__":
    main()
