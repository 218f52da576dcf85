"""torch.compile(fullgraph=True) of adjust + route + tally says what eager says, and does not
compile again after an update.
"""

import pytest
import torch

import equipoise
from equipoise.routing import route
from tests.contracts.table import ROWS, TOP_K, assert_same_state, assert_same_tally, exact_scores


def compiled_equals_eager(compiled_balancer, eager_balancer, backend, groups=None, mask=None):
    def forward(balancer, scores):
        routing = route(scores, TOP_K, choose_by=balancer.adjust(scores), groups=groups, mask=mask)
        return routing, balancer.tally(scores, routing)

    torch._dynamo.reset()
    compiled = torch.compile(forward, fullgraph=True, backend=backend, dynamic=False)
    for seed in range(3):
        scores = exact_scores(seed=seed)
        with torch.compiler.set_stance("default" if seed == 0 else "fail_on_recompile"):
            routing, tally = compiled(compiled_balancer, scores)
        expected_routing, expected_tally = forward(eager_balancer, scores)
        for mine, theirs in zip(routing, expected_routing, strict=True):
            assert mine is theirs is None or torch.equal(mine, theirs)
        assert_same_tally(tally, expected_tally)
        compiled_balancer.update(tally)
        eager_balancer.update(expected_tally)
    assert_same_state(compiled_balancer, eager_balancer)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_tracing_equals_eager(row):
    compiled_equals_eager(row.make(), row.make(), "aot_eager")


@pytest.mark.parametrize("name", ["deepseek", "quantile"])
def test_inductor_equals_eager(name):
    make = lambda: equipoise.balancer(name, 16, top_k=TOP_K)  # noqa: E731
    mask = torch.arange(160) % 5 == 0
    compiled_equals_eager(make(), make(), "inductor", groups=(4, 2), mask=mask)
