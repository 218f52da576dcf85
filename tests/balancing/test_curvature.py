"""The curvature rule: what it counts, what it solves, and that nothing makes it fail."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.arena.cells import Cell, run_cells
from equipoise.arena.floor import imbalance_floor
from equipoise.arena.reference import StreamReference
from equipoise.arena.replay import replay
from equipoise.arena.streams import catalogue
from equipoise.arena.streams.drifting import DriftingLogits
from equipoise.arena.streams.stream import sampling_floor
from equipoise.balancing.mathematics.gains import step_gains
from equipoise.balancing.mathematics.newton import far_experts, graph_newton_step
from equipoise.balancing.shift.curvature import CurvatureMove, count_pairs
from equipoise.balancing.shift.flips import FlipMove, default_stride
from equipoise.routing import route


def batch(num_tokens, num_experts, seed=0, skew=0.7):
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(num_tokens, num_experts, generator=rng)
        + skew * torch.randn(num_experts, generator=rng)
    ).softmax(-1)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    top_k=st.integers(1, 5),
    expert=st.integers(0, 5),
    move=st.floats(-0.5, 0.5),
)
def test_flips_tell_the_load_along_a_coordinate(seed, top_k, expert, move):
    """If one shift moves by s, exactly the tokens with a flip distance over -s take that expert."""
    scores = batch(60, 6, seed).double()
    shift = 0.1 * torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    routing = route(scores, top_k, choose_by=scores + shift)
    distance = FlipMove.distance(scores, routing, shift)[:, expert]
    if (distance + move).abs().min() < 1e-9:
        return  # a tie
    moved = shift.clone()
    moved[expert] += move
    assert route(scores, top_k, choose_by=scores + moved).loads[expert] == (distance > -move).sum()


def test_pairs_are_counted():
    scores = batch(300, 6)
    mask = torch.arange(300) % 4 == 0
    routing = route(scores, 2, mask=mask)
    expected = torch.zeros(6, 6, dtype=torch.int64)
    for token in range(300):
        order = scores[token].argsort(descending=True)
        if not mask[token] and scores[token, order[1]] - scores[token, order[2]] <= 0.05:
            expected[order[1], order[2]] += 1
    assert torch.equal(count_pairs(routing, 6, torch.tensor(0.05)), expected)


@pytest.mark.parametrize(("num_experts", "top_k"), [(5, 1), (5, 3), (12, 4)])
def test_uniform_scores_have_the_known_graph(num_experts, top_k):
    """i.i.d. uniform scores at shift 0 have w_kl = 1/(E - 1) for every K: the paper's w, known
    exactly.
    """
    num_tokens, bandwidth = 400_000, torch.tensor(0.003)
    scores = torch.rand(num_tokens, num_experts, generator=torch.Generator().manual_seed(0))
    pairs = count_pairs(route(scores, top_k), num_experts, bandwidth)
    weights = (pairs + pairs.T) / (2 * bandwidth * num_tokens)
    off_diagonal = weights[~torch.eye(num_experts, dtype=torch.bool)]
    assert float(off_diagonal.mean()) == pytest.approx(1 / (num_experts - 1), rel=0.05)
    assert not weights.diag().any()


def test_newton_solves_the_laplacian():
    move = CurvatureMove()
    move.build(6)
    half = torch.rand(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    graph = (half + half.T).fill_diagonal_(0)
    move.graph.copy_(graph)
    move.batches.fill_(1.0)
    move.seen.fill_(1e9)  # so many tokens that the prior weighs nothing
    gap = torch.tensor([1.0, -2.0, 0.5, 0.5, 1.0, -1.0], dtype=torch.float64)
    expected = torch.linalg.pinv(torch.diag(graph.sum(1)) - graph) @ gap
    torch.testing.assert_close(
        graph_newton_step(move._state(), gap, torch.ones(6, dtype=torch.float64)),
        expected,
        rtol=1e-4,
        atol=1e-6,
    )


def test_two_components_are_bridged():
    """Without an edge between two halves their gap cannot be closed by the graph alone: the prior
    joins them.
    """
    move = CurvatureMove()
    move.build(4)
    move.graph[0, 1] = move.graph[1, 0] = move.graph[2, 3] = move.graph[3, 2] = 1.0
    move.batches.fill_(1.0)
    move.seen.fill_(100.0)
    step = graph_newton_step(
        move._state(),
        torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64),
        torch.ones(4, dtype=torch.float64),
    )
    assert torch.isfinite(step).all()
    assert step[0] == pytest.approx(float(step[1]))
    assert step[0] > 0 > step[2]


@pytest.mark.parametrize(("drift", "low", "high"), [(0.0, 0.01, 0.05), (0.03, 0.4, 1.0)])
def test_the_gain_finds_itself(drift, low, high):
    balancer = equipoise.balancer("curvature", 16, top_k=2)
    for _ in replay(DriftingLogits(2048, 16, steps=60, drift=drift).draw_batches(), balancer):
        pass
    assert low <= float(balancer.direction.gain) <= high


def imbalances(stream, num_experts, balancer=None):
    return [
        step["imbalance"]
        for step in replay(
            stream, balancer or equipoise.balancer("curvature", num_experts, top_k=2)
        )
    ]


@pytest.mark.parametrize("seed", [7, 8])
def test_thin_evidence_adds_up(seed):
    """64 tokens, 8 experts, nothing drifts: steps 600 to 1,000 are at what chance leaves. With a
    gain of at least 0.05 and a bandwidth from one batch, in which six tokens hesitate, it was 1.10
    times that.
    """
    history = imbalances(DriftingLogits(64, 8, steps=1000, seed=seed).draw_batches(), 8)
    # single seeds scatter by 2 to 4%
    assert sum(history[600:]) / 400 <= 1.035 * sampling_floor(64, 8, 2)


def test_a_swap_after_long_calm_is_noticed():
    """By then the gain is small. Fifteen steps later the swap has to be forgotten."""
    history = imbalances(DriftingLogits(512, 8, steps=330, swap_at=300, seed=7).draw_batches(), 8)
    assert history[300] > 0.3
    assert sum(history[315:]) / 15 <= 1.3 * sampling_floor(512, 8, 2)


def test_an_expert_set_anew_starts_again():
    """After a flip step the gains of that expert are 1/2, 1/3, ..., those of the others the lasting
    one.
    """
    move = CurvatureMove()
    move.build(4)
    move.gain.fill_(0.01)
    move.doubt.fill_(0.0)
    size, calm = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    state, _ = step_gains(move._state(), calm, size, torch.tensor([True, False, False, False]))
    for expected in (1 / 2, 1 / 3, 1 / 4):
        state, gains = step_gains(state, calm, size, torch.zeros(4, dtype=torch.bool))
        torch.testing.assert_close(
            gains, torch.tensor([expected, 0.01, 0.01, 0.01]), check_dtype=False
        )


@pytest.mark.parametrize("mask", [None, torch.ones(32, dtype=torch.bool)])
def test_an_empty_batch_changes_nothing(mask):
    """No tokens, or nothing but padding: the bandwidth grew sixteenfold each time."""
    balancer = equipoise.balancer("curvature", 8, top_k=2)
    for seed in range(5):
        step_of(balancer, batch(64, 8, seed))
        before = {name: value.clone() for name, value in balancer.state_dict().items()}
        scores = batch(0 if mask is None else 32, 8, seed)
        balancer.update(balancer.tally(scores, balancer.route(scores, mask=mask)))
        changed = [
            name
            for name, value in balancer.state_dict().items()
            if not torch.equal(value, before[name])
        ]
        assert changed == ["steps"]


def test_small_batches_weigh_little():
    """Batches of 1,024 tokens and of one in turn: one token must not undo what the others show."""
    balancer = equipoise.balancer("curvature", 8, top_k=2)
    stream = DriftingLogits(1024, 8, steps=200, seed=7).draw_batches()
    history = imbalances(
        (scores[: 1 if step % 2 else None] for step, scores in enumerate(stream)), 8, balancer
    )
    assert sum(history[100::2]) / 50 <= 1.25 * sampling_floor(1024, 8, 2)


def alternating(num_tokens, num_experts, steps, seed):
    """Two popularities in turn, batch by batch."""
    rng = torch.Generator().manual_seed(seed)
    popularity = 0.7 * torch.randn(2, num_experts, generator=rng)
    for step in range(steps):
        logits = torch.randn(num_tokens, num_experts, generator=rng) + popularity[step % 2]
        yield logits.softmax(-1)


@pytest.mark.parametrize(("num_experts", "top_k", "at_most"), [(8, 2, 1.02), (64, 6, 0.7)])
def test_a_stream_that_alternates_is_not_made_worse(num_experts, top_k, at_most):
    """Every flip was wrong for the next batch: 0.93 where no balancing has 0.82."""
    late = {}
    for name in ("none", "curvature"):
        balancer = equipoise.balancer(name, num_experts, top_k=top_k)
        history = imbalances(alternating(2048, num_experts, 60, seed=3), num_experts, balancer)
        late[name] = sum(history[30:]) / 30
    assert late["curvature"] <= at_most * late["none"]


def test_flips_are_trusted_again_when_the_stream_stands_still():
    balancer = equipoise.balancer("curvature", 16, top_k=4)
    for scores in alternating(2048, 16, 40, seed=3):
        step_of(balancer, scores)
    assert (balancer.direction.flip_trust < 1).any()
    still = DriftingLogits(2048, 16, steps=40, seed=5).draw_batches()
    history = imbalances(still, 16, balancer)
    assert (balancer.direction.flip_trust == 16).all()
    assert sum(history[20:]) / 20 <= 1.25 * sampling_floor(2048, 16, 4)


def test_states_without_what_is_remembered_of_flips_load():
    balancer = equipoise.balancer("curvature", 8, top_k=2)
    step_of(balancer, batch(64, 8))
    state = balancer.state_dict()
    used = equipoise.balancer("curvature", 8, top_k=2)
    later = ("direction.flipped", "direction.flip_trust")
    used.load_state_dict({name: state[name] for name in state if name not in later})
    assert torch.equal(used.shift, balancer.shift)
    assert torch.equal(used.direction.flip_trust, torch.full((8,), 16.0))


def test_older_states_load():
    """Until 2026-11-18 the last residual was in place of the trail, and two buffers lacked."""
    balancer = equipoise.balancer("curvature", 8, top_k=2)
    step_of(balancer, batch(64, 8))
    state = {name.replace("trail", "last"): value for name, value in balancer.state_dict().items()}
    older = {
        name: value for name, value in state.items() if not name.endswith(("doubt", "usual_tokens"))
    }
    used = equipoise.balancer("curvature", 8, top_k=2)
    for seed in range(3):
        step_of(used, batch(64, 8, seed))
    used.load_state_dict(older)
    assert torch.equal(used.direction.trail_step, balancer.direction.trail_step)
    assert torch.equal(used.direction.doubt, torch.ones(8))
    assert float(used.direction.usual_tokens) == 0.0
    with pytest.raises(RuntimeError, match="doubt"):
        used.load_state_dict(
            {name: value for name, value in balancer.state_dict().items() if "doubt" not in name}
        )


def test_many_experts_let_the_gain_move_faster():
    """Of 300 experts with few tokens the gain has to come down within some twenty steps; by tenths
    it was still 0.24.
    """
    balancer = equipoise.balancer("curvature", 300, top_k=6)
    for _ in replay(DriftingLogits(512, 300, steps=24, drift=0.0).draw_batches(), balancer):
        pass
    assert float(balancer.direction.gain) < 0.2


@pytest.mark.parametrize(
    ("stream", "most"), [({}, 0.92), ({"drift": 0.03}, 0.97), ({"swap_at": 50}, 1.0)]
)
def test_it_beats_quantile(stream, most):
    """The small, seeded form of benchmarks/bench_curvature.py."""
    batches = list(DriftingLogits(2048, 16, steps=70, seed=3, **stream).draw_batches())
    final = {}
    for name in ("quantile", "curvature"):
        history = list(replay(batches, equipoise.balancer(name, 16, top_k=2)))
        final[name] = sum(measured["imbalance"] for measured in history[-30:]) / 30
    assert final["curvature"] <= most * final["quantile"]
    if not stream:
        assert final["curvature"] <= 1.1 * sampling_floor(2048, 16, 2)
        assert min(measured["imbalance"] for measured in history[:6]) <= 2 * sampling_floor(
            2048, 16, 2
        )


@pytest.mark.parametrize(("name", "most"), [("sequences", 1.15), ("heavy", 2.0)])
def test_noise_that_is_usual_moves_no_expert_alone(name, most):
    """Loads scatter more here than those of independent tokens would. Taken for experts gone
    astray, it was 1.3 and 2.7.
    """
    (stream,) = catalogue.find_streams(name, seed=5, steps=60)
    (result,) = run_cells(
        [Cell(stream, "curvature")],
        StreamReference(imbalance_floor(stream), {str(stream.steps - 1): math.nan}),
    )
    assert result.over_floor < most


def disliked(scores):
    """Three experts that no token prefers: their scores are thousands of times below the others."""
    scores = scores.clone()
    scores[:, :3] *= 1e-4
    return scores / scores.sum(1, keepdim=True)


def two_worlds(scores):
    """Half of the tokens like only the first half of the experts, the others the second: a
    disconnected graph.
    """
    world = (torch.arange(len(scores)) % 2).unsqueeze(1)
    half = (torch.arange(scores.shape[1]) >= scores.shape[1] // 2).long()
    return torch.where(world == half, scores, scores * 1e-12)


HARD = {
    "few tokens": (24, 16, 3, {}, None),
    "fewer tokens than experts": (8, 16, 3, {}, None),
    "one token": (1, 16, 3, {}, None),
    "dead experts": (512, 16, 3, {}, disliked),
    "disconnected": (512, 16, 3, {}, two_worlds),
    "many experts": (256, 896, 16, {}, None),
    "groups": (512, 16, 3, {"groups": (4, 2)}, None),
    "padding": (512, 16, 3, {"mask": torch.arange(512) % 3 == 0}, None),
    "all tokens alike": (512, 16, 3, {}, lambda scores: scores[:1].expand(512, -1).contiguous()),
}


@pytest.mark.parametrize("case", HARD)
def test_nothing_unsettles_it(case):
    num_tokens, num_experts, top_k, options, change = HARD[case]
    balancer = equipoise.balancer("curvature", num_experts, top_k=top_k)
    none = equipoise.balancer("none", num_experts, top_k=top_k)
    imbalance = {"none": 0.0, "curvature": 0.0}
    for step in range(16):
        scores = batch(num_tokens, num_experts, seed=1000 + step, skew=0.0)
        scores = scores * torch.linspace(0.5, 2, num_experts)
        scores = change(scores) if change else scores
        before, width = balancer.shift.clone(), balancer.direction.flips.width.max().clone()
        routing = balancer.route(scores, **options)
        balancer.update(balancer.tally(scores, routing))
        assert torch.isfinite(balancer.shift).all()
        assert not any(buffer.isnan().any() for buffer in balancer.buffers())
        assert (balancer.shift - before).abs().max() <= 2 * width
        if step >= 10:
            imbalance["curvature"] += float(equipoise.metrics(routing.loads)["imbalance"])
            imbalance["none"] += float(
                equipoise.metrics(none.route(scores, **options).loads)["imbalance"]
            )
    assert balancer.shift.abs().max() < 2  # scores are within 1 of each other
    if case not in (
        "one token",
        "fewer tokens than experts",
        "all tokens alike",
    ):  # no shift balances these
        assert imbalance["curvature"] < imbalance["none"]


def test_unequal_targets_are_approached():
    weights = [3.0] * 4 + [1.0] * 12
    balancer = equipoise.balancer("curvature", 16, top_k=3, target=weights)
    history = [
        float(
            equipoise.metrics(
                step_of(balancer, batch(2048, 16, seed=seed, skew=0.0)), target=weights
            )["imbalance"]
        )
        for seed in range(20)
    ]
    assert sum(history[-5:]) < 0.5 * sum(history[:1]) * 5


def step_of(balancer, scores):
    routing = balancer.route(scores)
    balancer.update(balancer.tally(scores, routing))
    return routing.loads


@pytest.mark.parametrize(
    ("num_tokens", "top_k", "num_experts", "stride"),
    [(16_384, 6, 64, 16), (128, 6, 64, 1), (8192, 16, 896, 2), (0, 1, 4, 1)],
)
def test_strides_leave_enough(num_tokens, top_k, num_experts, stride):
    assert default_stride(num_tokens, top_k, num_experts) == stride


def test_bad_strides_are_refused():
    with pytest.raises(ValueError, match="stride must be at least 1"):
        equipoise.balancer("curvature", 8, top_k=2, stride=0)


# gap, want and noise at the limit, and how many are far beyond it
AT_THE_LIMIT = {
    "one, by its share": ([1 / 4] + [0] * 15, [1 / 2] * 16, [0] * 16, 1),
    "one, by chance": ([5 / 32] + [0] * 15, [1 / 4] * 16, [1 / 1024] * 16, 1),
    "all, by their shares": ([0.3, -0.3], [1, 1], [0, 0], 2),
    "all, by chance": ([3 / 32, 4 / 32], [0.3, 0.3], [1 / 2048] * 2, 2),
}


@pytest.mark.parametrize("case", AT_THE_LIMIT)
def test_experts_are_far_beyond_the_limit_and_not_at_it(case):
    *numbers, beyond = AT_THE_LIMIT[case]
    gap, want, noise = (torch.tensor(each, dtype=torch.float64) for each in numbers)
    assert not far_experts(gap, want, noise).any()
    assert far_experts(gap * 1.001, want, noise).sum() == beyond
