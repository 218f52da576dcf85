"""The rules' mathematics is pure: functions of arrays that change nothing."""

import ast
import inspect
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

import equipoise
from equipoise import Tally
from equipoise.balancing import mathematics, target
from equipoise.balancing.mathematics import gap, histogram, smoothing, steps
from equipoise.balancing.mathematics.curvature_state import BatchEvidence, CurvatureState
from equipoise.balancing.mathematics.newton import curvature_step, gap_among_near
from equipoise.balancing.shift import quantile
from equipoise.balancing.shift.flips import FlipMove
from equipoise.routing.kernels.reference import scatter_bins

FILES = sorted(Path(mathematics.__file__).parent.glob("*.py"))
E, K = 6, 2


def impurities(text):
    """What a pure function does not need: operations in place, attributes set, modules, imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.endswith("_") and not name.endswith("__"):
                yield f"line {node.lineno}: {name} works in place"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
                yield f"line {node.lineno}: writes into something"
        elif isinstance(node, ast.ClassDef) and [ast.unparse(b) for b in node.bases] != [
            "NamedTuple"
        ]:
            yield f"line {node.lineno}: {node.name} is more than a record"
        elif isinstance(node, ast.ImportFrom):
            own = node.module.startswith("equipoise.balancing.mathematics")
            if not own and node.module not in ("__future__", "typing", "torch"):
                yield f"line {node.lineno}: imports {node.module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_changed_in_place(path):
    assert list(impurities(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "memory.mul_(0.9)",
        "self.memory = step",
        "memory[0] = 1",
        "class Rule(nn.Module): pass",
        "from equipoise.routing import Tally",
    ],
)
def test_impurities_are_seen(line):
    assert list(impurities(line)) != []


def random_step(seed):
    return torch.randn(E, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "function",
    [each for _, each in inspect.getmembers(steps, inspect.isfunction)],
    ids=lambda function: function.__name__,
)
def test_steps_leave_their_arguments(function):
    given = {"rate": 0.5, "decay": 0.9, "sharpness": 2.0, "most": 0.1, "width": 0.01}
    arguments = {
        name: given.get(name, random_step(seed).abs())
        for seed, name in enumerate(inspect.signature(function).parameters)
    }
    before = {name: torch.as_tensor(value).clone() for name, value in arguments.items()}
    first = function(**arguments)
    for name, value in arguments.items():
        assert torch.equal(torch.as_tensor(value), before[name])
    torch.testing.assert_close(function(**arguments), first, rtol=0, atol=0)


def batches(number):
    for seed in range(number):
        rng = torch.Generator().manual_seed(seed)
        yield (torch.randn(64, E, generator=rng) + torch.linspace(1, 0, E)).sigmoid()


def test_smebu_is_four_functions():
    """The module's updates, written out with nothing but arrays."""
    balancer = equipoise.balancer("smebu", E, top_k=K)
    shift, memory, weights = torch.zeros(E), torch.zeros(E), torch.ones(E, dtype=torch.float64)
    for scores in batches(8):
        routing = balancer.route(scores)
        want = gap.wanted_loads(routing.loads.sum().clamp_min(1), weights, float(E))
        step = (gap.load_gap(routing.loads, weights, float(E)) / want).float()
        step = steps.centered_step(steps.tanh_step(step, 2.0) * 5e-4)
        memory = steps.ema_step(memory, step, 0.5)
        shift = steps.euclidean_move(shift, memory)
        balancer.update(balancer.tally(scores, routing))
        assert torch.equal(shift, balancer.shift)


def test_curvature_is_one_function():
    balancer = equipoise.balancer("curvature", E, top_k=K)
    direction = balancer.direction
    state, shift = CurvatureState(*(part.clone() for part in direction._state())), torch.zeros(E)
    for scores in batches(8):
        tally = balancer.tally(scores, balancer.route(scores))
        kept = [part.clone() for part in state]
        step, following = curvature_step(state, direction._evidence(tally, balancer.target))
        for part, before in zip(state, kept, strict=True):
            assert torch.equal(part, before)
        state = following
        shift = shift + steps.centered_step(step.float())
        balancer.update(tally)
        assert torch.equal(shift, balancer.shift)
        for mine, theirs in zip(state, direction._state(), strict=True):
            assert torch.equal(mine, theirs)


def test_evidence_holds_no_modules():
    assert set(get_type_hints(BatchEvidence).values()) == {torch.Tensor, float, int}


def test_smoothing_is_one_function():
    balancer = equipoise.balancer("deepseek", E, top_k=K, update_rate=0.05)
    settling = balancer.settling
    state = smoothing.SmoothingState(
        settling.recent.clone(), *(value.clone() for value in list(settling.buffers())[1:])
    )
    for scores in batches(12):
        before = balancer.shift.clone()
        balancer.update(balancer.tally(scores, balancer.route(scores)))
        state = smoothing.smooth_shift(state, before, balancer.shift)
        assert torch.equal(state.settled, settling.settled)


def test_a_histogram_finds_its_quantile():
    distance = torch.linspace(-0.9, 0.9, 1000).unsqueeze(1).expand(-1, 3)
    width, want = torch.ones(3), torch.full((3,), 250.0, dtype=torch.float64)
    counts = scatter_bins(distance, torch.ones(1000, dtype=torch.bool), 32 / width, 64)
    move, next_width = histogram.quantile_move(histogram.counts_from_top(counts), want, width, 1.0)
    torch.testing.assert_close(move, torch.full_like(move, -0.45), rtol=0, atol=2 / 64)
    assert (next_width < 2).all()
    assert torch.equal(width, torch.ones(3))


def test_balanced_experts_have_no_gap_in_batches_of_many_millions():
    # in float32, 255 * 131,073 is not a whole number any more
    loads = torch.full((255,), 131_073)
    weights = torch.ones(255, dtype=torch.float64)
    loads[0] += 3
    loads[1] -= 3
    found = gap.load_gap(loads, weights, 255.0)
    assert found.tolist() == [-3.0, 3.0, *[0.0] * 253]


def test_rounded_weights_leave_no_gap_in_batches_of_many_millions():
    # the sum of 0.1 and 0.7 is not 0.8: of 8 * 10^9 choices that leaves 1.5e-7
    weights = torch.tensor([0.1, 0.7], dtype=torch.float64)
    loads = torch.tensor([10**9, 7 * 10**9])
    whole = float(weights.sum())
    assert gap.load_gap(loads, weights, whole).tolist() == [0.0, 0.0]
    one_moved = gap.load_gap(loads + torch.tensor([1, -1]), weights, whole)
    assert one_moved.tolist() == pytest.approx([-1.0, 1.0], abs=1e-6)


def test_flips_reach_four_times_as_far_as_leads():
    counts = torch.zeros(4, 66, dtype=torch.int64)
    counts[:, 20:46] = 10
    weights = target.Target(4, 1)
    leads, flips = quantile.QuantileMove(bins=64), FlipMove(bins=64)
    for move in (leads, flips):
        move.build(4)
        move(
            Tally(counts.sum(1), counts.sum(1)[None], torch.tensor(0), {move.part: counts}), weights
        )
    torch.testing.assert_close(flips.width, 4 * leads.width)


def test_what_is_usual_is_told_from_the_noise_of_independent_tokens():
    """Of T tokens an expert wanted by a share w is chosen with a variance of w (1 - w) / T."""
    balancer = equipoise.balancer("curvature", E, top_k=K)
    (scores,) = batches(1)
    evidence = balancer.direction._evidence(
        balancer.tally(scores, balancer.route(scores)), balancer.target
    )
    near = torch.linspace(-0.02, 0.02, E, dtype=torch.float64)
    # few hesitate: with many, all experts count as far, and nothing usual is learnt
    calm = evidence._replace(gap=near, pairs=torch.zeros_like(evidence.pairs))
    _, following = curvature_step(balancer.direction._state(), calm)
    noise = (calm.want * (1 - calm.want) / calm.tokens).sum()
    torch.testing.assert_close(following.usual.double(), near.square().sum() / noise)


def test_hypentropy_moves_are_bounded_over_ten_thousand_steps():
    shift = torch.zeros(4)
    for _ in range(10_000):
        shift = steps.hypentropy_move(shift, torch.tensor([0.1, -0.1, 60.0, -4000.0]), 1e-2)
    assert shift.tolist() == [16.0, -16.0, 16.0, -16.0]


def test_a_single_near_expert_has_nobody_to_exchange_with():
    far = torch.tensor([True, True, False])
    assert gap_among_near(far, torch.tensor([0.3, -0.2, 0.1])).tolist() == [0, 0, 0]
    assert gap_among_near(~far, torch.tensor([0.3, -0.1, 0.1])).tolist() == pytest.approx(
        [0.2, -0.2, 0]
    )
