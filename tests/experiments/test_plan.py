"""What a run costs: figures worked out another way, and the paper's own."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import equipoise
from equipoise.cli.plan import plan_rows
from equipoise.experiments.plan import (
    GPUS,
    expected_idle_share,
    flops_per_token,
    plan,
)
from equipoise.training import preset
from tests.model.twin import theirs


def test_the_papers_epochs():
    assert plan("deepseekmoe-1b", gpus=8).epochs == pytest.approx(220, rel=0.01)


def test_flops_are_those_torch_counts():
    """In a step of transformers' twin. Its attention computes the whole square, we count the half
    that is not masked.
    """
    model = preset("tiny").model
    twin = theirs(model)
    twin.set_attn_implementation("eager")
    twin.config._experts_implementation = "eager"
    tokens = torch.zeros(2, model.sequence_length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        twin(tokens, labels=tokens, use_cache=False).loss.backward()
    masked = 6 * model.layers * model.sequence_length * model.hidden_size
    assert counter.get_total_flops() / tokens.numel() == pytest.approx(
        flops_per_token(model) + masked, rel=0.005
    )


def test_twice_the_gpus_take_half_the_time():
    one, two = plan("deepseekmoe-1b", gpus=8), plan("deepseekmoe-1b", gpus=16)
    assert two.hours == pytest.approx(one.hours / 2)
    assert two.gpu_hours == pytest.approx(one.gpu_hours)


def test_hours_by_hand():
    made = plan("deepseekmoe-1b", gpus=8, gpu="A100", utilization=0.5)
    assert made.hours == pytest.approx(
        26_214_400_000 * made.flops_per_token / (8 * 312e12 * 0.5) / 3600
    )


def test_sharding_shares_memory():
    whole, shared = (plan("deepseekmoe-3b", gpus=8, parallel=kind) for kind in ("ddp", "fsdp"))
    assert whole.state_gigabytes == pytest.approx(8 * shared.state_gigabytes)
    assert whole.state_gigabytes == pytest.approx(16 * 2.621, rel=0.01)


def test_memory_says_whether_it_fits():
    assert plan("deepseekmoe-1b", gpus=8).fits
    assert not plan("deepseekmoe-3b", gpus=1, gpu="RTX4090").fits
    assert any(
        "does NOT fit" in row[1] for row in plan_rows(plan("deepseekmoe-3b", gpus=1, gpu="RTX4090"))
    )


def test_idle_time_is_what_drawn_loads_give():
    """Draw loads as assumed, and measure the waiting by equipoise.idle_share."""
    E, gpus, m = 64, 8, 0.09
    loads = np.random.default_rng(0).normal(1, m * np.sqrt(np.pi / 2), (20_000, E))
    drawn = float(equipoise.idle_share(torch.from_numpy(loads), devices=gpus))
    assert expected_idle_share(m, E, gpus, expert_share=1.0) == pytest.approx(drawn, rel=0.02)


def test_balance_costs_nothing():
    assert plan("deepseekmoe-1b", gpus=8, imbalance=0).idle_share == 0
    assert plan("deepseekmoe-1b", gpus=1).idle_share == 0
    assert plan("deepseekmoe-1b", gpus=8, imbalance=1.0).lost_gpu_hours > 5


def test_other_corpora_have_no_epochs():
    assert plan("tiny", gpus=1, data="texts/").epochs is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "H101"}, "no GPU 'H101' in the table: there are H100"),
        ({"gpus": 0}, "gpus must be at least 1"),
        ({"utilization": 40}, "between 0 and 1, not 40"),
        ({"imbalance": -1}, "not negative"),
        ({"gpus": 7}, "a batch of 8 sequences does not divide over 7 ranks"),
        ({"gpus": 4, "micro_batch_size": 3}, "do not divide into micro-batches of 3"),
    ],
)
def test_mistakes_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        plan("tiny", **{"gpus": 1, **options})


def test_every_gpu_has_figures():
    assert all(gpu.teraflops > 100 and gpu.gigabytes >= 24 for gpu in GPUS.values())
