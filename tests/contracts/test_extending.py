"""docs/extending.md is followed to the letter: every example is run, and does what is said."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import equipoise
from equipoise import cli
from equipoise.arena.replay import replay
from equipoise.attach.find import quirks
from equipoise.balancing import Dual, spec
from equipoise.balancing.shift.directions import LoadGap
from equipoise.balancing.shift.parts import Scale
from equipoise.routing.kernels import operators
from equipoise.theorems import registry
from tests.theorems.cases import lively

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", TEXT, flags=re.DOTALL))


def example(name):
    names = {"__name__": "equipoise_example"}
    exec(compile(EXAMPLES[name], f"docs/extending.md, {name}", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """Registries that forget what a test adds."""
    monkeypatch.setattr(spec, "_REGISTRY", dict(spec._REGISTRY))
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    monkeypatch.setattr(operators, "_BACK_ENDS", dict(operators._BACK_ENDS))
    monkeypatch.setattr(quirks, "CHECKPOINT_QUIRKS", dict(quirks.CHECKPOINT_QUIRKS))


def skewed_scores(tokens=512, experts=8):
    drawn = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(0))
    return drawn + torch.arange(experts) / experts


def trained_imbalance(balancer, steps=200):
    scores = skewed_scores()
    for _ in range(steps):
        balancer.update(balancer.tally(scores, balancer.route(scores)))
    return equipoise.metrics(balancer.route(scores).loads)["imbalance"]


def test_every_example_has_its_test():
    tests = {name for name in globals() if name.startswith("test_an_example_")}
    assert {f"test_an_example_{name}" for name in EXAMPLES} == tests
    assert len(EXAMPLES) == TEXT.count("```python")


def test_an_example_rule():
    example("rule")
    unbalanced = trained_imbalance(equipoise.balancer("none", 8, top_k=2), steps=0)
    assert trained_imbalance(equipoise.balancer("capped", 8, top_k=2)) < unbalanced / 4


def test_an_example_part():
    part = example("part")["HalveTurns"]()
    part.build(2)
    steps = [part(torch.tensor([1.0, 1.0]), None), part(torch.tensor([-1.0, 1.0]), None)]
    assert [step.tolist() for step in steps] == [[1.0, 1.0], [-0.5, 1.0]]
    balancer = Dual(8, 2, LoadGap("relative"), [part := type(part)(), Scale(0.05)])
    assert trained_imbalance(balancer) < 0.2
    assert part.last.dtype is torch.float32
    assert any(name.endswith("last") for name in balancer.state_dict())


def test_an_example_direction():
    balancer = Dual(8, 2, example("direction")["FullestOnly"]("relative"), [Scale(0.02)])
    scores = skewed_scores()
    balancer.update(balancer.tally(scores, balancer.route(scores)))
    assert (balancer.shift != 0).tolist() == [False] * 7 + [True]
    assert trained_imbalance(balancer, 400) < 0.2


def test_an_example_penalty():
    penalty = example("penalty")["MeanEntropy"](0.1)
    balancer = equipoise.balancer("deepseek", 8, top_k=2).carry(penalty)
    logits = skewed_scores().requires_grad_()
    scores = logits.softmax(-1)
    balancer.penalty(scores, balancer.route(scores), logits=logits).backward()
    # downhill is away from the popular experts
    assert logits.grad.sum(0)[7] > 0 > logits.grad.sum(0)[0]


def test_an_example_stream():
    kind = example("stream")["TwoTexts"]
    stream = kind(name="two texts", num_tokens=256, num_experts=8, top_k=2, steps=6)
    first, second = stream.batch(0).scores.mean(0), stream.batch(1).scores.mean(0)
    assert first.argmax() == second.argmin() == 7
    torch.testing.assert_close(stream.batch(3).scores, stream.batch(3).scores)
    assert len(list(replay(stream, equipoise.balancer("curvature", 8, top_k=2)))) == 6


def test_an_example_statement():
    fullest_falls = example("statement")["fullest_falls"]
    verdict = fullest_falls([lively(steps=20)])
    assert verdict.name == "18 the fullest expert falls"
    assert verdict.applies
    assert verdict.holds
    assert fullest_falls in registry.registered_statements()


def test_an_example_tracker():
    tracker = example("tracker")["Lines"]()
    loads = {"layer 0": torch.tensor([30, 10, 24, 0])}
    equipoise.log_balance(tracker, loads, 0, top_k=2, image_every=1)
    assert "0 balance/dead_experts 1.000" in tracker.lines
    assert any(line.startswith("0 balance/loads (") for line in tracker.lines)


def test_an_example_quirk(tmp_path):
    example("quirk")
    config = {"model_type": "my_moe", "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        "mlp.router.balance": torch.linspace(-1, 1, 8),
        "mlp.router.weight": torch.ones(8, 4),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    diagnosis = equipoise.doctor(tmp_path)
    assert (diagnosis.score, diagnosis.findings[0].layer) == ("softmax", "mlp")


def test_an_example_kernel():
    scores = (skewed_scores() * 8).round() / 8  # many ties
    shift = torch.linspace(0.5, 0, 8)
    expected = equipoise.route(scores, 2, shift=shift)
    rank = example("kernel")["rank_by_rounds"]
    found = equipoise.route(scores, 2, shift=shift)
    assert operators._BACK_ENDS["processor"]()[0] is rank
    assert torch.equal(found.experts, expected.experts)
    assert torch.equal(found.loads, expected.loads)


def test_an_example_column():
    """tests/results/test_new_metric.py takes the steps of the table with this column."""
    assert example("column")["VARIATION"].text(0.12345) == "0.123"
    places = re.findall(r"`([a-z_/]+\.py)`", TEXT)
    assert len(places) >= 7
    for place in places:
        assert (ROOT / "src/equipoise" / place).exists(), place


def test_an_example_verb(monkeypatch, capsys):
    verb = example("verb")["FLOOR"]
    monkeypatch.setattr(cli, "VERBS", (*cli.VERBS, verb))
    assert cli.main(verb.examples[0].split()[1:]) == 0
    assert capsys.readouterr().out == "0.0388\n"
