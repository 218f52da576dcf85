"""The examples for trainers that are given a path and a configuration run as they are written.

TRL and LLaMA-Factory are not among our dependencies: slow tests fetch them, without what they
depend on but for what is missing here.
"""

import json

import pytest

from tests.integrations.fetching import ROOT, fetch, run_python, run_tests
from tests.integrations.tiny_checkpoint import write_checkpoint

# pyarrow and dill as datasets can use them
DATASETS = ("datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19", "pyarrow==24.0.0", "xxhash")
LLAMAFACTORY = ("llamafactory==0.9.5", "trl==0.24.0", "omegaconf", "antlr4-python3-runtime==4.9.3")
LLAMAFACTORY += ("av", "contourpy", "cycler", "einops", "fire", "fonttools", "kiwisolver")
LLAMAFACTORY += ("matplotlib", "pillow", "pyparsing", "sentencepiece", "termcolor", "tiktoken")

RUN = """
import importlib.machinery, runpy, sys, types
for name in sys.argv[1].split(","):
    if name:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
del sys.argv[0:2]
found = runpy.run_path(sys.argv[0], run_name="__main__")
balancing = found["callback"].balancing
print("STEPS", balancing.steps)
if "trainer" in found:
    history = found["trainer"].state.log_history
    print("LOGGED", sum("imbalance" in entry for entry in history))
    print("TOKENS", max(int(entry.get("num_tokens", 0)) for entry in history))
"""


def run_example(packages, name, argument, folder, absent=""):
    """Run an example in a process; what it said of its steps."""
    example = ROOT / "examples" / f"{name}.py"
    output = run_python(packages, "-c", RUN, absent, example, argument, cwd=folder)
    said = [line.split() for line in output.splitlines() if line.split(" ")[0].isupper()]
    return {words[0]: int(words[1]) for words in said if len(words) == 2}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("balance_with_*trl*.py")), ids=lambda path: path.stem
)
def test_a_recipe_is_short(path):
    assert len(path.read_text().splitlines()) <= 30


@pytest.fixture(scope="module")
def trl(tmp_path_factory):
    return fetch(tmp_path_factory.mktemp("trl"), "trl==1.16.0", *DATASETS)


@pytest.mark.slow
def test_trls_trainers_balance(trl, tmp_path):
    model = write_checkpoint(tmp_path / "model")
    for trainer, steps, logged in (("sft", 20, 2), ("dpo", 10, 1), ("grpo", 5, 0)):
        said = run_example(trl, f"balance_with_trl_{trainer}", model, tmp_path)
        assert said["STEPS"] == steps
        assert said["LOGGED"] == logged
        assert said["TOKENS"] > 0
    # what TRL's collators and packing give is counted to the token
    run_tests(trl, ROOT / "tests" / "attach" / "test_padding.py", "trl", passed=6)


@pytest.mark.slow
def test_trls_grpo_trainer_replays_an_engine(trl):
    run_tests(trl, ROOT / "tests" / "attach" / "replay" / "test_trl_grpo.py", "trl", passed=2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "pt"])
def test_llamafactory_balances(stage, tmp_path, monkeypatch):
    """It allows older versions of transformers and of TRL only; this switch is its own."""
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    packages = fetch(tmp_path, *LLAMAFACTORY, *DATASETS)
    rows = [{"instruction": f"{n} plus {n}", "input": "", "output": str(2 * n)} for n in range(64)]
    (tmp_path / "sums.json").write_text(json.dumps(rows))
    (tmp_path / "dataset_info.json").write_text('{"sums": {"file_name": "sums.json"}}')
    settings = {
        "model_name_or_path": str(write_checkpoint(tmp_path / "model")),
        "stage": stage,
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "sums",
        "dataset_dir": str(tmp_path),
        "template": "empty",
        "cutoff_len": 128,
        "output_dir": str(tmp_path / "out"),
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "report_to": "none",
        "use_cpu": True,
    }
    # JSON is YAML
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    said = run_example(
        packages,
        "balance_with_llamafactory",
        tmp_path / "config.yaml",
        tmp_path,
        absent="torchaudio",
    )
    assert said["STEPS"] == 3
