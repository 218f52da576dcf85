"""ms-swift's callback by name: with stand-ins of its two ways to name callbacks everywhere, and by
its own command where it is installed.
"""

import json
import sys
import types
from pathlib import Path

import pytest
from transformers import Trainer

from equipoise.integrations.ms_swift import register_callback
from tests.attach.test_trainer import Text, trainer
from tests.attach.tools import tiny
from tests.integrations.fetching import ROOT, fetch, run_python
from tests.integrations.tiny_checkpoint import write_checkpoint

# what `swift sft` imports on a CPU; it names many more, and older ones of these
PACKAGES = ("ms-swift==4.6.0", "trl==1.16.0", "modelscope", "modelscope-hub", "json-repair")
PACKAGES += ("cryptography", "cffi", "pycparser", "einops", "simplejson", "attrs", "pillow")
PACKAGES += ("datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19", "pyarrow==24.0.0", "xxhash")


@pytest.fixture
def swift(monkeypatch):
    """A package `swift` without either."""
    package = types.ModuleType("swift")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "swift", package)
    monkeypatch.delitem(sys.modules, "swift.callbacks", raising=False)
    return monkeypatch


def test_a_callback_is_made_as_swift_makes_it(swift, tmp_path):
    module = types.ModuleType("swift.callbacks")
    module.callbacks_map = {"lisa": object}
    swift.setitem(sys.modules, "swift.callbacks", module)
    register_callback("balance", "proportional", update_rate=0.05)
    with pytest.raises(ValueError, match="a callback 'lisa' already"):
        register_callback("lisa")
    model = tiny("deepseek_v3")
    arguments = trainer(model, tmp_path).args
    callback = module.callbacks_map["balance"](arguments, object())
    run = Trainer(model, arguments, train_dataset=Text(), callbacks=[callback])
    run.train()
    assert callback.balancing.steps == 4
    assert callback.balancing.name == "proportional"
    assert all("imbalance" in entry for entry in run.state.log_history if "loss" in entry)


def test_older_releases_have_a_list(swift):
    module = types.ModuleType("swift.plugin")
    module.extra_callbacks = []
    swift.setitem(sys.modules, "swift.plugin", module)
    register_callback("balance", "smebu")
    (callback,) = module.extra_callbacks
    assert callback.balancer == "smebu"


def test_without_ms_swift_it_says_so():
    with pytest.raises(ModuleNotFoundError, match="swift"):
        register_callback()


@pytest.mark.slow
def test_swifts_own_command_balances(tmp_path):
    packages = fetch(tmp_path, *PACKAGES)
    rows = [
        {"messages": [{"role": "user", "content": f"{n} plus {n}"}, _answer(2 * n)]}
        for n in range(32)
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = "import sys; from swift.pipelines import sft_main; sft_main(sys.argv[1:])"
    flags = {
        "--model": write_checkpoint(tmp_path / "model"),
        "--model_type": "deepseek_v3",
        "--template": "dummy",
        "--dataset": tmp_path / "data.jsonl",
        "--external_plugins": ROOT / "examples" / "balance_with_ms_swift.py",
        "--callbacks": "balance",
        "--max_steps": 2,
        "--tuner_type": "full",
        "--torch_dtype": "float32",
        "--logging_steps": 1,
        "--output_dir": tmp_path / "out",
        "--report_to": "none",
        "--use_hf": "true",
    }
    words = [word for pair in flags.items() for word in pair]
    run_python(packages, "-c", command, *words, cwd=tmp_path)
    (log,) = (tmp_path / "out").rglob("logging.jsonl")
    logged = [json.loads(row) for row in Path(log).read_text().splitlines()]
    assert [row["imbalance"] >= 0 for row in logged if "loss" in row] == [True, True]
    assert list((tmp_path / "out").rglob("checkpoint-2/equipoise.safetensors"))


def _answer(number):
    return {"role": "assistant", "content": str(number)}
