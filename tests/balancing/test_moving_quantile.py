"""Moving quantiles: the formula token by token, and the same however a sequence is cut, packed or
padded.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.balancing.shift.moving_quantile import MovingQuantile, SequenceState
from equipoise.balancing.target import Target
from equipoise.routing.kernels.moving_quantiles import fading

E, K = 8, 2


def draw(*shape, seed=0, experts=E):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, experts, generator=rng) * torch.linspace(0.4, 1, experts)


def part(strength=1.0, experts=E, top_k=K, target=None, **options):
    moving = MovingQuantile(strength, **options)
    moving.build(Target(experts, top_k, target))
    return moving


def quantile_of(histogram, level):
    """Linear within the bin that reaches the level."""
    wanted, below = level * sum(histogram), 0.0
    for b, mass in enumerate(histogram):
        if below + mass >= wanted:
            return (b + (wanted - below) / mass if mass else b) / len(histogram)
        below += mass
    return 1.0


def plain_quantiles(scores, decay=0.99, bins=100, reach=1.0, levels=None):
    """The formula as it is printed, along one sequence (S, E)."""
    levels = [1 - K / E] * E if levels is None else levels
    histograms = [[0.0] * bins for _ in range(scores.shape[1])]
    found = []
    for row in scores.tolist():
        for histogram, score in zip(histograms, row, strict=True):
            for b in range(bins):
                histogram[b] *= decay
            where = torch.tensor(score) * torch.tensor(bins / reach)
            histogram[int(where.clamp(0, bins - 1))] += 1 - decay
        pairs = zip(histograms, levels, strict=True)
        found.append([quantile_of(histogram, level) * reach for histogram, level in pairs])
    return torch.tensor(found)


@pytest.mark.parametrize(
    "options",
    [{}, {"decay": 0.6}, {"decay": 0.9, "bins": 7}, {"decay": 0.999, "reach": 0.5}, {"bins": 1000}],
)
@pytest.mark.parametrize("backend", ["processor", "reference"])
def test_it_is_the_formula(options, backend):
    scores = draw(1, 150)
    with equipoise.kernels(backend):
        lowered = part(**options).lowered_scores(scores)
    torch.testing.assert_close(
        scores[0] - lowered[0], plain_quantiles(scores[0], **options), rtol=0, atol=1e-6
    )


def test_unequal_targets_have_other_levels():
    target = [2.0, 2.0] + [1.0] * 6
    scores = draw(1, 80)
    levels = [1 - K * weight / 10 for weight in target]
    found = scores - part(target=target).lowered_scores(scores)
    expected = plain_quantiles(scores[0], levels=levels)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("decay", [0.01, 0.5, 0.9, 0.99, 0.999, 1 - 1e-6])
def test_masses_stay_exact(decay):
    weights, fade = fading(decay).weights, fading(decay).fade
    assert all(weight == int(weight) > 2**16 for weight in weights)
    # what a sequence without an end amounts to, at the end of a window
    most = 0.0
    for _ in range(10_000):
        most = most * fade + sum(weights)
    assert most < 2**53
    ratio = weights[-1] / weights[0]
    assert ratio == pytest.approx(decay ** -(len(weights) - 1), rel=1e-6)


batches = st.tuples(
    st.integers(1, 3),
    st.integers(1, 150),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.integers(0, 2**16),
)


def made(batch):
    sequences, length, padding, decay, seed = batch
    scores = draw(sequences, length, seed=seed)
    rng = torch.Generator().manual_seed(seed + 1)
    return scores, torch.rand(sequences, length, generator=rng) < padding, decay


@settings(max_examples=30, deadline=None)
@given(batches)
def test_back_ends_agree_to_the_last_bit(batch):
    scores, mask, decay = made(batch)
    moving = part(decay=decay)
    state = moving.new_state(len(scores))
    state = moving.lowered_next(scores.flip(1)[:, :70], state)[1]
    with equipoise.kernels("reference"):
        slow, slow_state = moving.lowered_next(scores, state, mask)
        begun = moving.lowered_scores(scores, mask)
    fast, fast_state = moving.lowered_next(scores, state, mask)
    assert torch.equal(fast, slow)
    assert torch.equal(fast_state.masses, slow_state.masses)
    assert torch.equal(moving.lowered_scores(scores, mask), begun)


@settings(max_examples=30, deadline=None)
@given(batches, st.lists(st.integers(0, 150), max_size=5))
def test_chunks_are_the_whole_to_the_last_bit(batch, cuts):
    scores, mask, decay = made(batch)
    moving, cuts = part(decay=decay), sorted(cuts)
    whole, end = moving.lowered_next(scores, moving.new_state(len(scores)), mask)
    assert torch.equal(whole, moving.lowered_scores(scores, mask))
    state, chunks = moving.new_state(len(scores)), []
    for number, chunk in enumerate(scores.tensor_split(cuts, 1)):
        with equipoise.kernels("reference" if number % 2 else "auto"):
            hidden = mask.tensor_split(cuts, 1)[number]
            lowered, state = moving.lowered_next(chunk, state, hidden)
        chunks.append(lowered)
    assert torch.equal(torch.cat(chunks, 1), whole)
    assert torch.equal(state.masses, end.masses)
    assert torch.equal(state.places, end.places)


@settings(max_examples=30, deadline=None)
@given(batches)
def test_packed_and_padded_sequences_are_apart(batch):
    scores, mask, decay = made(batch)
    moving = part(decay=decay)
    apart = torch.cat(
        [
            moving.lowered_scores(row[~hidden].unsqueeze(0))[0]
            for row, hidden in zip(scores, mask, strict=True)
        ]
    )
    assert torch.equal(moving.lowered_scores(scores, mask)[~mask], apart)
    # packed, with numbers in no order
    names = torch.tensor([7, 3, 5])[: len(scores)].unsqueeze(1).expand(mask.shape)
    packed, owner = scores.flatten(0, 1), names.flatten()
    hidden = mask.flatten()
    found = moving.lowered_scores(packed, hidden, owner)
    assert torch.equal(found[~hidden], apart)
    # and interleaved: only the order within a sequence matters
    mixed = torch.arange(len(packed)).view(mask.shape).T.flatten()
    found = moving.lowered_scores(packed[mixed], hidden[mixed], owner[mixed])
    assert torch.equal(found, moving.lowered_scores(packed, hidden, owner)[mixed])
    # padding keeps its scores
    assert torch.equal(found[hidden[mixed]], packed[mixed][hidden[mixed]])


def test_later_tokens_change_nothing():
    balancer = equipoise.balancer("moving_quantile", E, top_k=K)
    scores = draw(2, 100)
    other = scores.clone()
    other[:, 60:] = draw(2, 40, seed=9)
    here, there = (balancer.route(each).experts.view(2, 100, K) for each in (scores, other))
    assert torch.equal(here[:, :60], there[:, :60])
    assert not torch.equal(here[:, 60:], there[:, 60:])


def crowded(seed=0, sequences=6, length=256):
    """Every sequence has experts of its own that it likes."""
    rng = torch.Generator().manual_seed(seed)
    likes = torch.randn(sequences, 1, E, generator=rng)
    return (likes + torch.randn(sequences, length, E, generator=rng)).sigmoid()


def worst_within(experts):
    """Mean over sequences of the fullest expert's excess."""
    loads = torch.stack([row.flatten().bincount(minlength=E) for row in experts])
    return float((loads.amax(1) * E / loads.sum(1) - 1).mean())


@pytest.mark.parametrize("rule", ["deepseek", "quantile", "curvature"])
def test_sequences_become_even_around_any_dual(rule):
    excess = []
    for strength in (0.0, 0.3, 1.0):
        balancer = equipoise.balancer(rule, E, top_k=K)
        balancer.within_sequences(MovingQuantile(strength))
        for seed in range(4):
            scores = crowded(seed)
            routing = balancer.route(scores)
            balancer.update(balancer.tally(scores, routing))
        last = crowded(9)
        excess.append(worst_within(balancer.route(last).experts.view(6, -1, K)))
    assert excess[2] < 0.4 * excess[1] < 0.4 * 0.9 * excess[0]


def test_the_shift_balances_what_is_lowered():
    balancer = equipoise.balancer("moving_quantile", E, top_k=K)
    scores = (draw(4, 256) + 0.2 * torch.linspace(1, 0, E)).clamp(0, 1)
    first = equipoise.metrics(balancer.route(scores).loads)["imbalance"]
    for _ in range(6):
        balancer.update(balancer.tally(scores, balancer.route(scores)))
    assert equipoise.metrics(balancer.route(scores).loads)["imbalance"] < first / 4


def test_strength_zero_is_the_rule_alone():
    plain = equipoise.balancer("quantile", E, top_k=K)
    other = equipoise.balancer("moving_quantile", E, top_k=K, strength=0.0)
    for seed in range(4):
        scores = draw(2, 60, seed=seed)
        routings = [each.route(scores) for each in (plain, other)]
        assert torch.equal(routings[0].experts, routings[1].experts)
        for each, routing in zip((plain, other), routings, strict=True):
            each.update(each.tally(scores, routing))
    assert torch.equal(plain.shift, other.shift)


def test_generation_continues_a_prompt():
    balancer = equipoise.balancer("moving_quantile", E, top_k=K)
    balancer.update(balancer.tally(draw(2, 90), balancer.route(draw(2, 90))))
    scores = draw(2, 90, seed=4)
    whole = balancer.route(scores).experts.view(2, 90, K)
    prompt, state = balancer.route_next(scores[:, :70])
    assert torch.equal(prompt.experts.view(2, 70, K), whole[:, :70])
    for place in range(70, 90):
        routing, state = balancer.route_next(scores[:, place : place + 1], state)
        assert torch.equal(routing.experts, whole[:, place])
    # a beam that begins twice from the second sequence
    chosen = state.select(torch.tensor([1, 1]))
    assert isinstance(chosen, SequenceState)
    again, _ = balancer.route_next(draw(1, 5).expand(2, 5, E), chosen)
    assert torch.equal(*again.experts.view(2, 5, K))


def test_gates_are_scores_and_carry_gradients():
    scores = draw(2, 30).requires_grad_()
    balancer = equipoise.balancer("moving_quantile", E, top_k=K)
    routing = balancer.route(scores)
    assert torch.equal(routing.gates, scores.flatten(0, 1).gather(1, routing.experts))
    routing.gates.sum().backward()
    assert float(scores.grad.sum()) == 2 * 30 * K


def test_layers_pass_on_whose_each_token_is():
    torch.manual_seed(0)
    hidden = torch.randn(1, 60, 16)
    packed = torch.arange(60).unsqueeze(0) // 20
    layer = equipoise.MoE(16, 8, E, K, balancer="moving_quantile", score="sigmoid", init_std=1.0)
    apart = layer(hidden.view(3, 20, 16))
    assert torch.equal(layer(hidden, sequences=packed).routing.experts, apart.routing.experts)
    assert not torch.equal(layer(hidden).routing.experts, apart.routing.experts)
    own = equipoise.LayerBalancer("moving_quantile", E, K)
    scores = draw(1, 60)
    alone = own(scores.view(3, 20, E)).experts.flatten(0, 1)
    assert torch.equal(own(scores, sequences=packed).experts[0], alone)


def test_it_compiles_whole():
    balancer = equipoise.balancer("moving_quantile", E, top_k=K)
    scores, mask = draw(2, 40), torch.rand(2, 40) < 0.3
    compiled = torch.compile(balancer.adjust, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(scores, mask), balancer.adjust(scores, mask))


def test_scores_that_no_bin_holds_are_in_the_outer_ones():
    scores = torch.tensor([[[-3.0, 0.5, 7.0, 1.0]]]).repeat(1, 4, 1)
    lowered = part(experts=4, top_k=1).lowered_scores(scores)
    beta = (scores - lowered)[0, -1]
    assert 0 <= float(beta[0]) <= 0.01
    assert float(beta[2]) == pytest.approx(0.9975)
    assert float(beta[3]) == pytest.approx(0.9975)
    balancer = equipoise.balancer("moving_quantile", 4, top_k=1)
    with pytest.raises(ValueError, match="finite"):
        balancer.route(torch.full((1, 2, 4), torch.nan))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1}, "strength must be a number, 0 or more"),
        ({"decay": 1.0}, "decay must be between 0 and 1"),
        ({"bins": 1}, "bins must be a whole number, at least 2"),
        ({"reach": 0.0}, "reach must be a number above 0"),
        ({"sequence_length": 0}, "sequence_length must be at least 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        equipoise.balancer("moving_quantile", E, top_k=K, **options)


def test_unknown_sequences_are_asked_for():
    balancer = equipoise.balancer("moving_quantile", E, top_k=K)
    with pytest.raises(ValueError, match=r"must know them: give scores of shape \(batch, length"):
        balancer.route(draw(10))
    with pytest.raises(ValueError, match="sequences has shape"):
        balancer.route(draw(10), sequences=torch.zeros(4, dtype=torch.int64))
    flat = equipoise.balancer("moving_quantile", E, top_k=K, sequence_length=4)
    with pytest.raises(ValueError, match="10 tokens do not divide into sequences"):
        flat.route(draw(10))
    assert torch.equal(flat.route(draw(12)).experts, balancer.route(draw(12).view(3, 4, E)).experts)
    with pytest.raises(ValueError, match=r"need scores of shape \(2, length, experts\)"):
        balancer.route_next(draw(3, 4), balancer.moving.new_state(2))
    with pytest.raises(ValueError, match="looks at no sequence"):
        equipoise.balancer("quantile", E, top_k=K).route_next(draw(2, 4))


def test_one_part_has_one_balancer():
    moving = MovingQuantile()
    equipoise.balancer("deepseek", E, top_k=K).within_sequences(moving)
    with pytest.raises(ValueError, match="already belongs"):
        equipoise.balancer("deepseek", E, top_k=K).within_sequences(moving)


def test_looking_ahead_at_single_tokens_is_refused():
    balancer = equipoise.balancer("moving_quantile", E, top_k=K)
    with pytest.raises(ValueError, match="must see whole sequences"):
        equipoise.Router(16, balancer, look_ahead=8)
