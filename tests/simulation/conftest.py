"""A small model on a small cluster: what the tests of this room simulate."""

import pytest

from equipoise.costs.cluster import Cluster
from equipoise.costs.devices import GPU
from equipoise.costs.workload import Workload

SMALL = Workload(
    name="small",
    tokens=2**20,
    moe_layers=6,
    num_experts=32,
    top_k=4,
    hidden_size=64,
    expert_size=32,
    flops_per_token=2 * 6.0 * 6 * 4 * 3 * 64 * 32,
)
CLUSTER = Cluster("small", GPU(1, 1, link=1, node=8, network=0.1), 16, 1.0, 1.0, 1.0)
OPTIONS = {
    "expert_parallel": 8,
    "device_tokens": 256,
    "pool": 256,
    "steps": 12,
    "layers": 3,
    "balancers": ["none", "deepseek", "quantile"],
}


@pytest.fixture
def small():
    """The arguments of a small simulation."""
    return {"model": SMALL, "cluster": CLUSTER, **OPTIONS}
