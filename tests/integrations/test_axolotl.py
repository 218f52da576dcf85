"""axolotl's plugin: with a stand-in of its base class everywhere, and with axolotl's own plugin
manager and config validation where it is installed.

axolotl pins some sixty packages, CUDA kernels among them. Its plugins and its config need few, so a
slow test fetches those alone.
"""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError

from tests.attach.test_trainer import trainer
from tests.attach.tools import tiny
from tests.integrations.fetching import ROOT, fetch, run_tests

NAME = "equipoise.integrations.axolotl.BalancePlugin"
PACKAGES = ("axolotl==0.19.0", "addict", "colorama", "pillow", "datasets==5.2.0")
PACKAGES += ("dill==0.4.1", "multiprocess==0.70.19", "pyarrow==24.0.0", "xxhash")


class Section(dict):
    def to_dict(self):
        return dict(self)


class Config:
    """What a plugin reads of axolotl's config: None for what is not there."""

    def __init__(self, section=None):
        self.equipoise = None if section is None else Section(section)


@pytest.fixture
def module(monkeypatch):
    """Our plugin on a base class like axolotl's."""
    base = types.ModuleType("axolotl.integrations.base")
    base.BasePlugin = type("BasePlugin", (), {"register": lambda self, cfg: None})
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    name = "equipoise.integrations.axolotl"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    monkeypatch.undo()
    sys.modules.pop(name, None)


def gate_bias(model):
    return model.model.layers[1].mlp.gate.e_score_correction_bias


def test_a_training_is_balanced(module, tmp_path):
    plugin = module.BalancePlugin()
    assert isinstance(plugin, sys.modules["axolotl.integrations.base"].BasePlugin)
    model = tiny("deepseek_v3")
    run = trainer(model, tmp_path)
    section = {"balancer": "proportional", "options": {"update_rate": 0.05}, "settle": True}
    for callback in plugin.add_callbacks_post_trainer(Config(section), run):
        run.add_callback(callback)
    run.train()
    assert plugin.balancing.steps == 4
    assert all("imbalance" in entry for entry in run.state.log_history if "loss" in entry)
    last = gate_bias(model).clone()
    plugin.post_train(Config(section), model)
    assert torch.equal(gate_bias(model), plugin.balancing.routers[0].applied_shift)
    assert not torch.equal(gate_bias(model), last)


def test_without_a_section_the_defaults_hold(module, tmp_path):
    plugin, run = module.BalancePlugin(), trainer(tiny("deepseek_v3"), tmp_path)
    plugin.add_callbacks_post_trainer(Config(), run)
    assert plugin.balancing.name == "curvature"
    first = plugin.balancing
    plugin.add_callbacks_post_trainer(Config({"balancer": "smebu"}), run)
    assert not first.context.attached
    assert plugin.balancing.name == "smebu"
    last = gate_bias(run.model).clone()
    plugin.post_train(Config(), run.model)
    assert torch.equal(gate_bias(run.model), last)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"balanser": "smebu"}, "Extra inputs"),
        ({"balancer": "smebbu"}, "did you mean 'smebu'"),
        ({"balancer": "aux"}, "aux has no shift"),
        ({"balancer": "deepseek", "options": {"update_rte": 1}}, "did you mean 'update_rate'"),
        ({"balancer": "deepseek", "options": {"update_rate": -1.0}}, "update_rate"),
        ({"trace_scores": -1}, "greater than or equal to 0"),
    ],
)
def test_mistakes_are_refused_before_anything_is_loaded(module, section, said):
    with pytest.raises(ValidationError, match=said):
        module.BalanceArgs.model_validate({"equipoise": section})


def test_a_target_is_left_to_the_model(module):
    options = {"options": {"target": [2.0, 1.0]}}
    assert module.BalanceArgs.model_validate({"equipoise": options}).equipoise.options["target"]


def real_config(section):
    from axolotl.utils.config import prepare_plugins, validate_config
    from axolotl.utils.dict import DictDefault

    written = {
        "base_model": "a/model",
        "plugins": [NAME],
        "datasets": [{"path": "a", "type": "alpaca"}],
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
    }
    config = DictDefault(written | ({} if section is None else {"equipoise": section}))
    prepare_plugins(config)
    return validate_config(config)


def needs_axolotl():
    if importlib.util.find_spec("axolotl") is None:
        pytest.skip("axolotl is not installed; a slow test fetches it")


def test_axolotls_own_plugin_manager_balances(tmp_path):
    needs_axolotl()
    from axolotl.integrations.base import PluginManager

    written = yaml.safe_load((ROOT / "examples" / "balance_with_axolotl.yaml").read_text())
    assert written["plugins"] == [NAME]
    config, manager = real_config(written["equipoise"]), PluginManager.get_instance()
    run = trainer(tiny("deepseek_v3"), tmp_path)
    manager.post_model_load(config, run.model)
    callbacks = manager.add_callbacks_post_trainer(config, run)
    assert len(callbacks) == 1
    run.add_callback(callbacks[0])
    run.train()
    manager.post_train(config, run.model)
    assert manager.plugins[NAME].balancing.steps == 4
    assert gate_bias(run.model).any()
    assert run.state.log_history[0]["imbalance"] > 0


@pytest.mark.parametrize("section", [None, {}, {"skip": ["*.0.*"], "trace": "run/trace"}])
def test_axolotls_own_validation_takes_a_section(section):
    needs_axolotl()
    validated = real_config(section).equipoise
    assert validated["balancer"] == "curvature"
    assert validated["skip"] == (section or {}).get("skip", [])


@pytest.mark.parametrize("section", [{"balanser": "smebu"}, {"balancer": "smebbu"}])
def test_axolotls_own_validation_refuses_mistakes(section):
    needs_axolotl()
    with pytest.raises(ValidationError, match=r"Extra inputs|did you mean 'smebu'"):
        real_config(section)


@pytest.mark.slow
def test_axolotl_is_fetched(tmp_path):
    run_tests(fetch(tmp_path, *PACKAGES), Path(__file__), "own", passed=6)
