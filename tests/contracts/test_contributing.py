"""CONTRIBUTING.md is followed to the letter: its examples work, and its places exist."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import equipoise
from equipoise.balancing import spec
from equipoise.theorems import registry
from equipoise.training.config import Config

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# places for what is still to come
TO_COME = {"routing/kernels/"}


def example(name):
    pattern = rf"<!-- example: {name} -->\n```python\n(.*?)```"
    code = re.search(pattern, TEXT, flags=re.DOTALL).group(1)
    names = {"__name__": "equipoise_example"}
    exec(compile(code, f"CONTRIBUTING.md, {name}", "exec"), names)
    return names


@pytest.fixture
def registries(monkeypatch):
    """Registries that forget what a test adds."""
    monkeypatch.setattr(spec, "_REGISTRY", dict(spec._REGISTRY))
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))


@pytest.mark.usefixtures("registries")
def test_a_method_is_one_function():
    example("method")
    assert "clipped" in equipoise.balancers()
    balancer = equipoise.balancer("clipped", 8, top_k=2, update_rate=0.02)
    scores = torch.rand(512, 8, generator=torch.Generator().manual_seed(0)) + torch.arange(8) / 8
    first = balancer.route(scores).loads
    for _ in range(100):
        balancer.update(balancer.tally(scores, balancer.route(scores)))
    imbalance = [
        equipoise.metrics(each)["imbalance"] for each in (first, balancer.route(scores).loads)
    ]
    assert imbalance[1] < imbalance[0] / 4
    assert Config(balancer="clipped", update_rate=1e-3).balancer == "clipped"
    assert equipoise.MoE(16, 8, 8, 2, balancer="clipped")
    assert spec.method_spec("clipped").rates_to_try == (1e-3, 1e-2)


@pytest.mark.usefixtures("registries")
def test_a_statement_is_one_function():
    example("statement")
    found = {verdict.name: verdict for verdict in equipoise.verify()}
    assert found["18 underloaded experts gain score"].applies
    assert found["18 underloaded experts gain score"].holds


def test_a_router_of_ones_own_is_found_by_structure():
    made = example("family")

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = made["Gate"]()
            self.experts = nn.Linear(16, 16)

        def forward(self, hidden):
            _, gates, _ = self.gate(hidden)
            return self.experts(hidden) * gates.sum(-1, keepdim=True)

    model = nn.Sequential(Block()).train()
    balancing = equipoise.balance(model, "deepseek", update_rate=1e-2)
    model(torch.randn(32, 16)).sum().backward()
    balancing.step()
    (loads,) = balancing.metrics(loads=True)["loads"].values()
    assert sum(loads) == 64


def test_every_place_exists():
    table = TEXT[TEXT.index("## The tree") : TEXT.index("## Run and judge")]
    places = {place for place in re.findall(r"`([\w/.]+(?:/|\.py))`", table) if "/" in place}
    assert len(places) > 20
    package = ROOT / "src" / "equipoise"
    missing = {
        place
        for place in places - TO_COME
        if not any((root / place).exists() for root in (package, ROOT, ROOT / "tests/contracts"))
        and not any(package.rglob(place.rstrip("/")))
    }
    assert missing == set()


def test_every_room_is_in_the_table():
    rooms = {path.name for path in (ROOT / "src/equipoise").iterdir() if path.is_dir()}
    table = TEXT[TEXT.index("## The tree") : TEXT.index("## Where a change goes")]
    shown = {place.rstrip("/") for place in re.findall(r"`(\w+/)`", table)}
    assert rooms - {"__pycache__"} <= shown
