"""Files that version 0.1.0 wrote, before the house was rebuilt: all of them are still read.

files_of_0_1/ was made by commit 4e504dc: a training stopped at its third of six steps, the metrics
it would have had, a comparison, a sweep, an arena, the state of every balancer, a balanced Hugging
Face model's sidecar and trace, and a solved problem. Never make them
anew: their age is their worth.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import equipoise
from equipoise.cli import main
from equipoise.storage.arrays import read_array

OLD = Path(__file__).with_name("files_of_0_1")


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy to work in, since its configs name their text by a relative path."""
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    return folder


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def contents(folder, pattern):
    return {path: path.read_bytes() for path in sorted(folder.rglob(pattern))}


def test_a_stopped_training_resumes_to_the_same_figures(old):
    assert main(["train", "--config", "stopped/config.yaml", "--resume"]) == 0
    resumed, unbroken = (
        rows(old / name) for name in ("stopped/metrics.jsonl", "metrics_of_six_steps.jsonl")
    )
    steps = [row["step"] for row in unbroken]
    assert [row["step"] for row in resumed] == steps
    # the clock of the first three steps is the old one: they were not trained again
    assert resumed[: steps.index(4)] == unbroken[: steps.index(4)]
    for ours, theirs in zip(resumed, unbroken, strict=True):
        assert ours.keys() >= theirs.keys()
        # equal to the last digit on the machine that made them; another processor rounds otherwise
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


def test_a_trace_is_read_and_checked(old):
    trace = equipoise.Trace.open("stopped/trace")
    assert trace.top_k == 2
    assert trace.whole_steps(0) == trace.steps(0) == [1, 2, 3, 4, 5, 6]
    record = trace.record(0, 6)
    assert record.loads.sum() == 2 * len(record.scores) == 64
    assert main(["verify", "stopped/trace"]) == 0
    huggingface = equipoise.Trace.open("huggingface-trace")
    assert [len(huggingface.steps(layer)) for layer in huggingface.layers] == [3, 3]


def test_a_comparison_is_known_to_be_finished(old, capsys):
    before = contents(old / "comparison/runs", "*.json*")
    assert main(["report", "comparison"]) == 0
    assert main(["report", "comparison/rows.json", "--markdown"]) == 0
    assert "no balancing" in capsys.readouterr().out
    assert contents(old / "comparison/runs", "*.json*") == before


def test_a_sweep_trains_nothing_again(old, capsys):
    before = contents(old / "sweep/trials", "*.json*")
    assert len(before) > 0
    assert main(["sweep", "grid.yaml", "--out", "sweep", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert contents(old / "sweep/trials", "*.json*") == before
    assert not found["failed"]
    assert not found["unfinished"]


def test_an_arena_replays_nothing_again(old, capsys):
    before = {path: path.stat().st_mtime_ns for path in (old / "arena").glob("thin-*.json")}
    asked = "arena thin-e8 --steps 12 --balancers deepseek curvature --out arena --json"
    assert main(asked.split()) == 0
    assert len(json.loads(capsys.readouterr().out)) == 5
    assert {path: path.stat().st_mtime_ns for path in (old / "arena").glob("thin-*.json")} == before
    assert main(["report", "arena"]) == 0


@pytest.mark.parametrize("name", equipoise.balancers())
def test_states_of_balancers_load(name):
    stored = load_file(OLD / "balancers.safetensors")
    state = {key.split("/")[1]: stored[key] for key in stored if key.split("/")[0] == name}
    if not state:
        pytest.skip(f"version 0.1.0 had no {name}")
    balancer = equipoise.balancer(name, 8, top_k=2)
    balancer.load_state_dict(state)
    assert int(balancer.steps) == 3
    scores = torch.rand(64, 8).softmax(-1)
    balancer.update(balancer.tally(scores, balancer.route(scores)))
    assert int(balancer.steps) == 4


def test_a_sidecar_loads(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "moe_intermediate_size": 8, "intermediate_size": 16}
    config = transformers.Qwen3MoeConfig(num_experts_per_tok=2, num_experts=4, **sizes)
    model = transformers.Qwen3MoeForCausalLM(config).train()
    balancing = equipoise.balance(model, "curvature").load(OLD / "sidecar")
    stored = load_file(OLD / "sidecar" / "equipoise.safetensors")
    shifts = [value for name, value in stored.items() if name.endswith("shift")]
    assert len(shifts) == 2
    assert all(shift.abs().sum() > 0 for shift in shifts)
    balancing.save(tmp_path)
    again = load_file(tmp_path / "equipoise.safetensors")
    assert all(torch.equal(again[name], value) for name, value in stored.items())


def test_a_solution_is_read():
    loads, experts = (read_array(OLD / "solved.npz", name) for name in ("loads", "experts"))
    assert loads.tolist() == [20, 20, 20, 20]
    optimum = equipoise.solve(np.load(OLD / "scores.npy"), top_k=2)
    assert optimum.value == read_array(OLD / "solved.npz", "value")[0]
    assert np.bincount(experts.ravel()).tolist() == loads.tolist()
