"""Hub kernels in the place of a router's own forward: met, or refused, and never counted as zero.

The `kernels` package sets `module.forward` on classes it has noted a layer name on. Most tests do
so by hand; the slow one runs the package itself, with a kernel in a local folder.
"""

import json
import pickle
from pathlib import Path
from types import MethodType

import pytest
import torch
from torch import nn

import equipoise
from tests.attach.tools import batch, forward, shift_of, tiny
from tests.integrations.fetching import fetch, run_tests


class SortingRouter(nn.Module):
    """A drop-in of Mixtral's router, as a kernel is one: no torch.topk to be seen."""

    def forward(self, hidden_states):
        hidden_states = hidden_states.reshape(-1, self.hidden_dim)
        logits = torch.nn.functional.linear(hidden_states, self.weight)
        weights, experts = logits.float().softmax(-1).sort(dim=-1, descending=True)
        weights, experts = weights[:, : self.top_k], experts[:, : self.top_k]
        return logits, weights / weights.sum(-1, keepdim=True), experts


class WholeBlock(nn.Module):
    """A kernel that is a whole layer of experts."""

    def forward(self, hidden_states):
        return hidden_states * 2


def kernelize(monkeypatch, module, layer=SortingRouter):
    """As `kernels.kernelize` does it."""
    monkeypatch.setattr(type(module), "kernel_layer_name", layer.__name__, raising=False)
    module.forward = MethodType(layer.forward, module)


def gates_of(model):
    return [layer.mlp.gate for layer in model.model.layers]


def counted_after_step(model, seed=0):
    balancing = equipoise.balance(model, update_rate=0.01)
    forward(model, batch(seed, padded=True)).backward()
    balancing.step()
    return balancing


def test_a_router_runs_its_own_forward_while_it_is_balanced(monkeypatch):
    plain = counted_after_step(tiny("mixtral"))
    model = tiny("mixtral")
    for gate in gates_of(model):
        kernelize(monkeypatch, gate)
    kernels = [gate.forward for gate in gates_of(model)]
    balancing = counted_after_step(model)
    assert balancing.metrics(loads=True) == plain.metrics(loads=True)
    assert torch.equal(shift_of(balancing), shift_of(plain))
    balancing.detach()
    assert [gate.forward for gate in gates_of(model)] == kernels


def test_a_router_with_a_bias_does_too(monkeypatch):
    """And is learnt from its own forward: this kernel could not run it at all."""
    plain = counted_after_step(tiny("deepseek_v3"))
    model = tiny("deepseek_v3")
    gate = model.model.layers[1].mlp.gate
    kernelize(monkeypatch, gate)
    kernel = gate.forward
    balancing = counted_after_step(model)
    assert balancing.metrics(loads=True) == plain.metrics(loads=True)
    assert balancing.detach().model.layers[1].mlp.gate.forward == kernel


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_a_kernel_that_comes_later_is_reported(name, monkeypatch):
    model = tiny(name)
    balancing = counted_after_step(model)
    kernelize(monkeypatch, model.model.layers[1].mlp.gate)
    with pytest.raises(RuntimeError, match=r"model\.layers\.1\.mlp runs a Hub kernel .* after"):
        balancing.step()


def test_the_kernel_of_a_whole_block_is_refused(monkeypatch):
    model = tiny("mixtral")
    kernelize(monkeypatch, model.model.layers[1].mlp, WholeBlock)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp runs the Hub kernel 'WholeBlock'"):
        equipoise.balance(model)
    balancing = equipoise.balance(model, skip=["*.1.mlp"])
    assert [router.name for router in balancing.routers] == ["model.layers.0.mlp"]


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_a_router_that_ran_and_counted_nothing_is_named(name):
    """Also when it was counted in the steps before, and when others are counted still."""
    model = tiny(name)
    balancing = counted_after_step(model)
    block = model.model.layers[1].mlp
    own = type(block.gate).forward
    if name == "mixtral":
        # whoever sets a forward of his own takes ours away
        block.gate.forward = lambda hidden: own(block.gate, hidden)
    else:
        block.forward = lambda hidden: hidden
    forward(model, batch(1)).backward()
    with pytest.raises(RuntimeError, match=r"were not counted: model\.layers\.1\.mlp\. A fused"):
        balancing.step()


def test_a_model_with_a_kernel_is_copied(monkeypatch):
    model = tiny("mixtral")
    for gate in gates_of(model):
        kernelize(monkeypatch, gate)
    balancing = counted_after_step(model)
    copied = pickle.loads(pickle.dumps(model))
    assert torch.equal(forward(copied, batch(2)), forward(model, batch(2)))
    assert copied.model.layers[0].mlp.gate is not gates_of(model)[0]
    balancing.detach()


def kernel_folder(folder):
    """A kernel as the hub has them, in pure Python: a module with `layers`, and its metadata."""
    package = folder / "build" / "torch-universal"
    package.mkdir(parents=True)
    about = {"name": "sorting-router", "id": "sorting_router_1", "version": 1}
    about |= {"license": "Apache-2.0", "python-depends": [], "backend": {"type": "cpu"}}
    (package / "metadata.json").write_text(json.dumps(about))
    source = (
        "import types\nimport torch\nfrom torch import nn\n\n"
        + Path(__file__).read_text().split("\n\n\n")[1]
        + "\n\nlayers = types.SimpleNamespace(SortingRouter=SortingRouter)\n"
    )
    (package / "__init__.py").write_text(source)
    return folder


def test_the_kernels_package_itself(tmp_path):
    """Its own mapping and kernelize, with a layer from a local folder."""
    kernels = pytest.importorskip("kernels", reason="a slow test fetches the kernels package")
    plain = counted_after_step(tiny("mixtral"))
    model = tiny("mixtral")
    kernels.replace_kernel_forward_from_hub(type(gates_of(model)[0]), "SortingRouter")
    layer = kernels.LocalLayerRepository(kernel_folder(tmp_path), layer_name="SortingRouter")
    with kernels.use_kernel_mapping({"SortingRouter": {"cpu": layer}}):
        kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cpu")
    assert all(hasattr(gate.forward, "__func__") for gate in gates_of(model))
    assert "topk" not in gates_of(model)[0].forward.__func__.__code__.co_names
    balancing = counted_after_step(model)
    assert balancing.metrics(loads=True) == plain.metrics(loads=True)
    with kernels.use_kernel_mapping({"SortingRouter": {"cpu": layer}}):
        kernels.kernelize(model, mode=kernels.Mode.TRAINING, device="cpu")
    with pytest.raises(RuntimeError, match="Hub kernel that was put in place after"):
        balancing.step()


@pytest.mark.slow
def test_the_kernels_package_is_fetched(tmp_path):
    run_tests(fetch(tmp_path, "kernels==0.17.2", "tomlkit"), Path(__file__), "itself", passed=1)
