"""Conjugate gradients against the pseudo-inverse, their slow twin."""

import pytest
import torch

from equipoise.balancing.mathematics.laplacian import solve_laplacian


def graph_of(num_experts, seed=0, sparse=0.0):
    rng = torch.Generator().manual_seed(seed)
    half = torch.rand(num_experts, num_experts, dtype=torch.float64, generator=rng).triu(1)
    half = half * (torch.rand(num_experts, num_experts, generator=rng) >= sparse)
    return half + half.T


def gap_of(num_experts, seed=0):
    gap = torch.randn(
        num_experts, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return gap - gap.mean()


@pytest.mark.parametrize("num_experts", [2, 3, 16, 64, 200])
@pytest.mark.parametrize("sparse", [0.0, 0.5])
def test_it_is_the_pseudo_inverse(num_experts, sparse):
    graph, gap = (
        graph_of(num_experts, sparse=sparse if num_experts > 3 else 0.0),
        gap_of(num_experts),
    )
    expected = torch.linalg.pinv(torch.diag(graph.sum(1)) - graph) @ gap
    torch.testing.assert_close(
        solve_laplacian(graph, gap, rounds=64), expected, rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(
        solve_laplacian(graph, gap), expected, rtol=0, atol=1e-3 * float(expected.abs().max())
    )


def test_more_rounds_change_nothing_solved():
    graph, gap = graph_of(4), gap_of(4)
    torch.testing.assert_close(
        solve_laplacian(graph, gap, 100), solve_laplacian(graph, gap, 8), rtol=1e-9, atol=0
    )


def test_lone_experts_stay():
    graph, gap = graph_of(5), gap_of(5)
    graph[2] = graph[:, 2] = 0
    gap[2] = 0
    gap[[0, 1, 3, 4]] -= gap[[0, 1, 3, 4]].mean()
    step = solve_laplacian(graph, gap)
    # the others are solved among themselves
    torch.testing.assert_close(graph.sum(1) * step - graph @ step, gap)
    assert abs(float(step.mean())) < 1e-12


def test_no_edges_no_step():
    assert not solve_laplacian(torch.zeros(4, 4, dtype=torch.float64), gap_of(4)).any()
