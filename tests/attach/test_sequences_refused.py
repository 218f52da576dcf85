"""A balancer that follows sequences is refused where routers are given flat tokens."""

import pytest

import equipoise
from equipoise.attach.making import make_dual
from equipoise.integrations.by_loads import ByLoads
from equipoise.integrations.torchtitan.counted_choice import _checked_dual


def test_models_routers_do_not_show_sequences():
    with pytest.raises(ValueError, match="moving_quantile follows each sequence"):
        make_dual("moving_quantile", {}, 8, 2)


def test_frameworks_that_pass_loads_alone():
    with pytest.raises(ValueError, match="moving_quantile needs more than loads"):
        ByLoads("moving_quantile", top_k=2)


def test_torchtitan():
    made = equipoise.balancer("moving_quantile", 8, top_k=2)
    with pytest.raises(ValueError, match="torchtitan's router is given flat tokens"):
        _checked_dual(made)
