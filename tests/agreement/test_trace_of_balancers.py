"""Balancers of the practice, recorded on a stream and judged by the theory: nothing that applies
may be refuted.
"""

import numpy as np
import pytest
import torch

import equipoise
from equipoise.arena.streams.drifting import DriftingLogits
from equipoise.balancing.shift.stated_step_size import stated_step_size
from equipoise.theorems import verify
from equipoise.trace import Trace, TraceWriter

T, E, K = 512, 8, 2


def recorded(folder, name, gate="softmax", steps=4, **options):
    """A few steps of a balancer, as a training's observer would record them."""
    balancer = equipoise.balancer(name, E, top_k=K, **options)
    stream = DriftingLogits(T, E, steps=steps, drift=0.02, seed=1).draw_batches()
    with TraceWriter(folder, top_k=K, layers=1, about={"gate": gate, "balancer": name}) as writer:
        for n, scores in enumerate(stream):
            scores = scores.log().sigmoid() if gate == "sigmoid" else scores
            routing = balancer.route(scores)
            before = balancer.shift.clone()
            balancer.update(balancer.tally(scores, routing))
            writer.append(
                n,
                0,
                shift=before,
                shift_after=balancer.shift,
                loads=routing.loads,
                step_size=stated_step_size(balancer, routing.loads),
                scores=scores,
                whole=True,
            )
    return Trace.open(folder)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "name",
    ["deepseek", "proportional", "inverse", "inverse_sqrt", "quantile", "adagrad", "moonlight"],
)
def test_nothing_is_refuted(name, gate, tmp_path):
    verdicts = {verdict.name: verdict for verdict in verify(recorded(tmp_path / "t", name, gate))}
    for verdict in verdicts.values():
        assert not verdict.refuted, verdict
    # quantile reads more than loads, so it has no step size to state
    assert verdicts["1 change in Lagrangian"].applies == (name != "quantile")
    # adagrad's first step divides each gap by its own size
    of_signs = name in ("deepseek", "moonlight", "adagrad")
    assert verdicts["6 sandwich, free of assumptions"].applies == of_signs


def test_deepseeks_statements_apply(tmp_path):
    verdicts = {
        verdict.name: verdict
        for verdict in verify(recorded(tmp_path / "t", "deepseek", update_rate=5e-3))
    }
    for name in (
        "3 pairwise bounds",
        "5 assignment changes",
        "8 movements, B_k(p)",
        "9 band stability, B_k(p)",
    ):
        assert verdicts[name].applies, verdicts[name]
    assert "softmax" in verdicts["assumption: independent experts"].why
    for name in ("12 unbiased gradient", "13 variance and second moment", "16 one-step accounting"):
        assert verdicts[name].applies, verdicts[name]


def test_a_shift_in_half_precision_is_seen(tmp_path):
    """bf16 shifts do not move by u: the paper's update is not what happened."""
    trace = recorded(tmp_path / "t", "deepseek", steps=2)
    record = trace.record(0, 1)
    rounded = torch.tensor(record.shift_after + 0.5).bfloat16().float().numpy()
    with TraceWriter(tmp_path / "u", top_k=K, layers=1) as writer:
        fields = {
            "loads": record.loads,
            "step_size": record.step_size,
            "scores": record.scores,
            "whole": True,
        }
        writer.append(1, 0, shift=record.shift + np.float32(0.5), shift_after=rounded, **fields)
    [verdict] = [
        each for each in verify(Trace.open(tmp_path / "u")) if each.name == "1 change in Lagrangian"
    ]
    assert not verdict.applies
    assert "did not move by step size times gap" in verdict.why
