"""`equipoise advise` judged: its rates against a fine search, its forecasts against replays.

    python benchmarks/judge_advice.py                     # the table of docs/results/advise.md
    python benchmarks/judge_advice.py --experts 16 --streams softmax drift
    python benchmarks/judge_advice.py --trace runs/a/trace   # of a training with --trace-batches

Evidence is ten batches of the first half of a stream, or of the last third of a recorded training,
whose scores settle on the way; replays run from p = 0 over all of it, at 25 rates a rule, and the
last third is compared. Rates within 10% of the best, forecasts within 15%.
"""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np

from equipoise.arena.advice.advise import _advise_rule
from equipoise.arena.advice.evidence import read_layer
from equipoise.arena.advice.prediction import RULES
from equipoise.arena.streams.catalogue import SYNTHETIC, find_streams
from equipoise.arena.streams.recorded import Recorded
from equipoise.arena.streams.stream import Stream
from equipoise.arena.streams.synthetic import Drift, Skew, Synthetic
from equipoise.optimum.topk import top_k_loads

STEPS = 120
STREAMS = (
    "softmax", "sigmoid", "uniform", "beta", "slow-drift", "drift", "sigmoid-drift", "sequences",
    "topics", "dying", "heavy",
)  # fmt: skip
SLOW = dataclasses.replace(SYNTHETIC["drift"], popularity=(Skew(), Drift(0.005)), name="slow-drift")
SIZES = {16: (2, 2048), 64: (6, 4096), 256: (8, 4096)}
SEARCHED = {
    "deepseek": (1e-5, 1e-1),
    "proportional": (1e-4, 1.0),
    "inverse": (1e-2, 1e2),
    "inverse_sqrt": (1e-3, 1e1),
}


def sized_stream(name: str, experts: int, seed: int) -> Synthetic:
    """A stream of the catalogue with other sizes; its parts and laws stay."""
    top_k, tokens = SIZES[experts]
    return dataclasses.replace(
        SLOW if name == "slow-drift" else SYNTHETIC[name],
        num_experts=experts,
        top_k=top_k,
        num_tokens=tokens,
        steps=STEPS,
        seed=seed,
        target=None,
    )


def later_part(stream: Stream, after: int) -> Stream:
    """A recorded stream without its first batches."""
    assert isinstance(stream, Recorded)
    return dataclasses.replace(stream, records=stream.records[after:], steps=stream.steps - after)


def replay(batches: list[np.ndarray], top_k: int, rule: str, rate: float) -> float:
    """Mean imbalance of the last third."""
    tokens, experts = batches[0].shape
    load, shift, found = top_k * tokens / experts, np.zeros(experts, np.float32), []
    for n, scores in enumerate(batches, 1):
        gap = load - top_k_loads(scores, shift, top_k)
        found.append(np.abs(gap).mean() / load)
        step = {
            "deepseek": np.sign(gap),
            "proportional": gap / load,
            "inverse": gap / tokens / n,
            "inverse_sqrt": gap / tokens / n**0.5,
        }[rule]
        shift = (shift + rate * step).astype(np.float32)
    return float(np.mean(found[-len(found) // 3 :]))


def judge_stream(name: str, stream: Stream) -> list[str]:
    """A line of the table for each rule."""
    batches = [np.ascontiguousarray(batch.scores.numpy()) for batch in stream]
    experts = stream.num_experts
    number = len(batches)
    first, last = (2 * number // 3, number) if isinstance(stream, Recorded) else (0, number // 2)
    steps = list(range(first, last, max(1, (last - first) // 10)))
    taken = [batches[step] for step in steps]
    layer = read_layer(name, taken, steps, stream.top_k, block=stream.block)
    lines = []
    for rule in RULES:
        advice = _advise_rule([layer], rule, len(batches))
        searched = np.geomspace(*SEARCHED[rule], 25)
        levels = [replay(batches, stream.top_k, rule, rate) for rate in searched]
        met = replay(batches, stream.top_k, rule, advice.rate)
        best = int(np.argmin(levels))
        lost, off = met / min(*levels, met) - 1, advice.imbalance / met - 1
        mark = "" if lost <= 0.1 and abs(off) <= 0.15 else " **"
        lines.append(
            f"| {name} | {experts} | {rule} | {advice.rate:.2g} | {searched[best]:.2g} | "
            f"{lost:+.1%} | {advice.imbalance:.4f} | {met:.4f} | {off:+.1%}{mark} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--streams", nargs="+", default=list(STREAMS))
    parser.add_argument("--seed", type=int, default=53, help="none was used to build the theory")
    parser.add_argument("--trace", help="a trace of whole batches, instead of made streams")
    parser.add_argument("--after", type=int, default=0, help="records of the trace to leave out")
    options = parser.parse_args()
    print("| stream | E | rule | advised | best of 25 | lost | forecast | measured | off |")
    print("|---|---|---|---|---|---|---|---|---|")
    lines = []
    if options.trace:
        judged = [
            (each.name, later_part(each, options.after)) for each in find_streams(options.trace)
        ]
    else:
        judged = [
            (name, sized_stream(name, experts, options.seed))
            for experts in options.experts
            for name in options.streams
        ]
    for name, stream in judged:
        for line in judge_stream(name, stream):
            lines.append(line)
            print(line, flush=True)
    kept = sum("**" not in line for line in lines)
    print(f"\n{kept} of {len(lines)} within 10% of the best rate and 15% of the measured imbalance")


if __name__ == "__main__":
    main()
