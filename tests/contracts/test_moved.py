"""Modules that moved: the old spelling imports the same module and says the new one."""

import importlib
import subprocess
import sys

import pytest

from equipoise._moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_the_old_name_is_the_same_module(old):
    sys.modules.pop(f"equipoise.{old}", None)
    new = importlib.import_module(f"equipoise.{MOVED[old]}")
    with pytest.warns(FutureWarning, match=f"equipoise.{old} is now equipoise.{MOVED[old]}"):
        found = importlib.import_module(f"equipoise.{old}")
    assert found is new
    assert found.__spec__.name == new.__name__ == f"equipoise.{MOVED[old]}"


def test_functions_are_not_replaced_by_modules_of_their_name():
    lines = [
        "import equipoise.assignment.solve, equipoise.assignment.evaluate, equipoise.theorems.band",
        "import equipoise, equipoise.optimum, numpy",
        "assert equipoise.optimum.solve is equipoise.solve",
        "assert equipoise.solve(numpy.eye(4), top_k=1).value == 4",
        "assert equipoise.evaluate(numpy.eye(4), 1, numpy.zeros(4)).value == 4",
        "assert equipoise.assignment.solve is equipoise.solve",
    ]
    command = [sys.executable, "-W", "ignore::FutureWarning", "-c", "\n".join(lines)]
    subprocess.run(command, check=True)


def test_new_names_are_silent():
    new = "import equipoise, equipoise.optimum.solve, equipoise.attach.lightning"
    subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", new], check=True)


def test_names_documented_before_still_import():
    lines = [
        "from equipoise.assignment.densities import Beta",
        "from equipoise.assignment.expected import Expected",
        "from equipoise.assignment.iterate import FixedScores, Path, choose, deepseek, iterate",
        "from equipoise.balancing import Dual, Balancer",
        "from equipoise.balancing.directions import LoadGap",
        "from equipoise.balancing.penalties import AuxiliaryLoss, ZLoss",
        "from equipoise.balancing.rules import Center, Clip, Momentum, Scale, Tanh",
        "from equipoise.arena.streams import Stream, DriftingLogits, sampling_floor",
        "from equipoise.arena.replay import replay",
        "from equipoise.arena import catalogue",
        "catalogue.find, catalogue.SYNTHETIC",
        "from equipoise.arena.cells import Cell, Reference, Result, refer, run",
        "from equipoise.arena.contest import contest, plan",
        "from equipoise.arena.floor import floor",
        "from equipoise.arena.record import record",
        "from equipoise.arena.tune import advise",
        "from equipoise.integrations.huggingface import Balancing, balance, find_routers",
        "from equipoise.integrations.huggingface.recording import record_model",
        "from equipoise.integrations.megatron import install",
        "from equipoise.integrations.torchtitan import load_balancing_hook",
        "from equipoise.layers import Experts",
        "from equipoise.layers.router import Router",
        "from equipoise.theorems.movement import bounded_movements",
        "from equipoise.theorems.regret import descend",
        "from equipoise.trace import Trace, TraceWriter",
        "from equipoise.training import preset",
        "from equipoise.training.config import Config",
        "from equipoise.training.trainer import Trainer",
    ]
    command = [sys.executable, "-W", "ignore::FutureWarning", "-c", "\n".join(lines)]
    subprocess.run(command, check=True)
