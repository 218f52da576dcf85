"""Relabelling, where the target names experts: relabelled along with the scores."""

import torch

import equipoise
from tests.contracts.table import NUM_EXPERTS, ROWS, TOP_K, UNEQUAL, exact_scores, forward


def test_relabelled_targets_relabel_shifts():
    order = torch.randperm(NUM_EXPERTS, generator=torch.Generator().manual_seed(5))
    for name, row in {row.name: row for row in ROWS if not row.blocks}.items():
        balancer, relabelled = (
            equipoise.balancer(
                name, NUM_EXPERTS, top_k=TOP_K, **row.options | {"target": torch.tensor(target)}
            )
            for target in (UNEQUAL, torch.tensor(UNEQUAL)[order].tolist())
        )
        for seed in range(3):
            scores = exact_scores(seed=seed)
            balancer.update(forward(balancer, scores)[1])
            relabelled.update(forward(relabelled, scores[:, order])[1])
        tolerance = 1e-7 if name == "curvature" else 0  # its solve sums over experts, and rounds
        torch.testing.assert_close(relabelled.shift, balancer.shift[order], rtol=0, atol=tolerance)
