"""A rank that loses the others says so in time, and ends. (On real hosts: test_two_hosts.py)"""

import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

from equipoise.training import lost_rank
from equipoise.training.config import Config
from equipoise.training.ranks import join_ranks
from equipoise.training.settings import describe_differences


@pytest.fixture
def asked(monkeypatch):
    """Two ranks, as far as `join_ranks` can see; what it asks of torch.distributed is kept."""
    found = {}
    # or this process would leave as a lost rank does
    monkeypatch.setattr(lost_rank, "_kept", [])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "is_initialized", lambda: "timeout" in found)
    monkeypatch.setattr(dist, "init_process_group", lambda _, **more: found.update(more))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: found.update(ended=True))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    return found


def test_ranks_wait_as_long_as_the_config_says(asked):
    with join_ranks(Config(device="cpu", rank_timeout=7.5)) as world:
        assert world.ranks == 2
    assert asked["timeout"] == timedelta(seconds=7.5)
    assert asked["ended"]


def test_a_lost_rank_is_told_with_the_remedy(asked):
    error = RuntimeError("[../gloo/transport/tcp/buffer.cc:72] Timed out waiting 8000ms for recv")
    message = r"rank 1 lost the others \(Timed out waiting .*--rank-timeout.*--resume: runs/a"
    with (
        pytest.raises(ConnectionError, match=message),
        join_ranks(Config(device="cpu", out="runs/a")),
    ):
        raise error
    assert asked["ended"]
    assert lost_rank._kept == [error]


LOST = """
import threading
from equipoise.training.lost_rank import leave_without_destructors

class Model:
    def __del__(self):
        # as torch's Reducer, which waits for a thread that waits for it
        threading.Event().wait()

def forward(model):
    raise RuntimeError("lost")

def run():
    try:
        forward(Model())
    except RuntimeError as error:
        leave_without_destructors(error)
        raise ConnectionError("the reason") from error

try:
    run()
except ConnectionError as error:
    print(error)
"""


def test_a_lost_rank_ends_although_its_model_cannot_be_destroyed():
    found = subprocess.run(
        [sys.executable, "-c", LOST], capture_output=True, text=True, timeout=120, check=False
    )
    assert (found.returncode, found.stdout) == (lost_rank.EXIT_CODE, "the reason\n")


@pytest.mark.usefixtures("asked")
def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes do not fit"), join_ranks(Config(device="cpu")):
        raise RuntimeError("shapes do not fit")


def test_a_resumed_training_may_wait_longer():
    one, other = (Config(rank_timeout=seconds).to_dict() for seconds in (8, 600))
    assert list(describe_differences(one, other)) == []
    assert list(describe_differences(one, Config(learning_rate=0.5).to_dict())) != []


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_an_impossible_time_is_refused(seconds):
    with pytest.raises(ValueError, match="rank_timeout must be positive and finite"):
        Config(rank_timeout=seconds)
