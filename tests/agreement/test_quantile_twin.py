"""The histogram's move lies within one bin of the exact one, which sorts."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.balancing.shift.quantile import exact_quantile_move
from equipoise.routing import route


def moves(balancer, scores, mask=None, groups=None):
    """(move by histogram, exact move, width of a bin), all (E,)."""
    routing = route(
        scores, balancer.top_k, choose_by=balancer.adjust(scores), mask=mask, groups=groups
    )
    exact = exact_quantile_move(scores, routing, balancer.shift, balancer.target)
    bin_width = 2 * balancer.direction.width.double() / balancer.direction.bins
    tally = balancer.tally(scores, routing)
    return balancer.direction(tally, balancer.target), exact, bin_width


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    num_tokens=st.integers(1, 400),
    top_k=st.integers(1, 7),
    skew=st.floats(0, 2),
    bins=st.sampled_from([16, 512]),
    sigmoid=st.booleans(),
)
def test_within_one_bin(seed, num_tokens, top_k, skew, bins, sigmoid):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_tokens, 8, generator=rng) + skew * torch.randn(8, generator=rng)
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    mask = torch.rand(num_tokens, generator=rng) < 0.2
    mask[0] = False
    balancer = equipoise.balancer("quantile", 8, top_k=top_k, bins=bins)
    move, exact, bin_width = moves(balancer, scores, mask)
    assert ((move - exact).abs() <= bin_width * (1 + 1e-4)).all()


def test_narrow_bins_stay_within_one():
    """After some updates the bins are a hundred times finer, and the agreement with them."""
    balancer = equipoise.balancer("quantile", 32, top_k=4)
    rng = torch.Generator().manual_seed(0)
    for _ in range(6):
        scores = (torch.randn(4096, 32, generator=rng) + torch.linspace(0, 2, 32)).softmax(-1)
        width_before = balancer.direction.width.clone()
        move, exact, bin_width = moves(balancer, scores)
        assert ((move - exact).abs() <= bin_width * 1.01).all()
        balancer.direction.width.copy_(width_before)  # moves() adapted it: let update() do so
        routing = route(scores, 4, choose_by=balancer.adjust(scores))
        balancer.update(balancer.tally(scores, routing))
    assert (balancer.direction.width < 0.2).all()


def test_forbidden_groups_are_below_all_bins():
    balancer = equipoise.balancer("quantile", 16, top_k=2)
    scores = torch.rand(512, 16, generator=torch.Generator().manual_seed(1))
    move, exact, bin_width = moves(balancer, scores, groups=(4, 2))
    assert ((move - exact).abs() <= bin_width * 1.01).all()


def test_everything_outside_is_counted():
    balancer = equipoise.balancer("quantile", 4, top_k=1)
    scores = torch.tensor([[9.0, 5.0, 0.0, 1.0]]).repeat(8, 1)
    routing = route(scores, 1, choose_by=balancer.adjust(scores))
    histogram = balancer.tally(scores, routing).parts["leads"]
    assert histogram.sum(1).tolist() == [8] * 4
    assert histogram[:, 0].tolist() == [0, 0, 8, 8]  # 5 and 4 below the runner-up
    assert histogram[:, -1].tolist() == [8, 0, 0, 0]


def test_widths_grow_where_the_quantile_fell_outside():
    balancer = equipoise.balancer("quantile", 4, top_k=1)
    scores = torch.tensor([[9.0, 5.0, 0.0, 1.0]]).repeat(8, 1)
    routing = route(scores, 1, choose_by=balancer.adjust(scores))
    balancer.update(balancer.tally(scores, routing))
    assert balancer.direction.width.tolist()[::2] == [4.0, 4.0]
