"""The page of a simulation: its answer, what its lines sum to, and names that are no markup."""

import csv
import dataclasses
import io

import numpy as np
import pytest

from equipoise.report.simulation.page import (
    lost_so_far,
    simulation_answer,
    simulation_page,
    write_simulation_page,
)
from equipoise.results.simulation import SimulationSettings, hours_text
from equipoise.simulation.costs import cost_layers

SETTINGS = SimulationSettings(
    model="small",
    cluster="<b>mine</b>",
    stream="e384",
    num_experts=32,
    top_k=4,
    devices=16,
    group=8,
    moe_layers=4,
    layers=2,
    steps=900,
    forward_tokens=2048,
    step_tokens=2**20,
    pool=256,
    seed=0,
    balanced_seconds=10.0,
    waiting_seconds=4.0,
    balancers=(("none", None), ("deepseek", 1e-3)),
)


def simulated(price=None, worst=3.0):
    fullest = np.ones((2, 900))
    fullest[0] = worst
    fullest[1] += 0.5 / np.arange(1, 901)
    return cost_layers(SETTINGS, [fullest, fullest], price)


def test_the_answer():
    lost = 0.5 * (1 / np.arange(1, 901)).sum() * 4 * 16 / 3600
    assert simulation_answer(simulated()) == (
        f"In the first 900 steps of small on <b>mine</b>, deepseek loses {lost:.3g} device hours "
        "to waiting for the fullest device, 0.2% of all; none loses 32, 44.4% of all."
    )
    with_nan = simulated(worst=np.nan)
    assert "none" not in simulation_answer(with_nan)


def test_the_last_point_is_the_table():
    found = simulated()
    for row in found.rows:
        assert lost_so_far(found, row.balancer)[-1] == pytest.approx(row.lost_device_hours)


def test_the_page_is_written_with_its_data(tmp_path):
    found = simulated(price=2.0)
    path = write_simulation_page(found, tmp_path / "page.html")
    text = path.read_text()
    assert "<b>mine</b>" not in text
    assert "&lt;b&gt;mine" in text
    assert "<td>64</td>" in text
    rows = list(csv.reader(io.StringIO((tmp_path / "figures/simulation-lost.csv").read_text())))
    assert rows[0] == ["step", "none", "deepseek"]
    assert len(rows) == 901
    assert float(rows[-1][1]) == pytest.approx(32)


def test_a_balancer_that_diverged_has_no_figures():
    found = simulated(worst=np.nan)
    assert "diverged at step 0" in simulation_page(found, {})
    alone = dataclasses.replace(found, rows=found.rows[1:])
    assert simulation_answer(alone) == "Every balancer diverged: no figure is of use."


@pytest.mark.parametrize(
    ("hours", "text"), [(0.01234, "0.0123"), (67.16, "67.2"), (1122.4, "1,122"), (0.0, "0")]
)
def test_hours_are_short(hours, text):
    assert hours_text(hours) == text
