"""What a command loads before it answers: nobody waits seconds for a help text.

Not timed: `benchmarks/bench_start.py` is. Each command runs in a process of its own, which then
says which of the heavy packages it has imported.
"""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "torch._dynamo", "numba", "scipy", "transformers", "plotly")
AT_ONCE = ("numpy", "rich", "tyro", "yaml")
"""not slow by themselves, but nothing that a list of verbs needs"""


def loaded_by(*words, among=HEAVY):
    """The packages among `among` that a command has imported when it ends."""
    code = (
        "import json, sys\n"
        "from equipoise.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "finally: print('\\n' + json.dumps([n for n in NAMES if n in sys.modules]))".replace(
            "NAMES", repr(among)
        )
    )
    run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    return json.loads(run.stdout.splitlines()[-1]), run


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["plan", "--help"]])
def test_the_list_of_verbs_loads_nothing(words):
    loaded, run = loaded_by(*words, among=HEAVY + AT_ONCE)
    assert loaded == [], run.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--help"], "--update-rate"),
        (["train", "--preset", "deepseekmoe-1b", "--help"], "(default: deepseekmoe-1b)"),
        (["train", "--no-such-setting", "1"], "--no-such-setting"),
        (["plan", "deepseekmoe-1b"], "billion"),
        (["plan", "deepseekmoe-3b", "--gpus", "16", "--parallel", "fsdp", "--json"], "gpu_hours"),
        (["plan", "deepseek-v3", "--cluster", "h800-64"], "imbalance"),
        (["simulate", "--help"], "--device-tokens"),
        (["report", "nowhere"], "nowhere"),
        (["compare", "--help"], "--schemes"),
        (["place", "--help"], "--redundant"),
    ],
)
def test_what_needs_no_tensors_loads_no_torch(words, said, tmp_path):
    loaded, run = loaded_by(*words)
    assert loaded == [], run.stderr
    assert said in run.stdout + run.stderr


def test_layers_load_no_compiler():
    code = (
        "import sys, torch, equipoise\n"
        "layer = equipoise.MoE(16, 8, 8, 2)\n"
        "layer(torch.rand(4, 16)).output.sum().backward()\n"
        "print('torch._dynamo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr


def test_the_check_sees_torch():
    code = "import sys, equipoise.layers\nprint('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "True\n", run.stderr


def test_every_lazy_name_is_there_and_listed():
    """What __all__ promises is found, and the type checker's imports are the same names."""
    import equipoise.model
    import equipoise.training

    for package in (equipoise, equipoise.model, equipoise.training):
        assert set(package.__all__) <= set(dir(package))
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="no_such_name"):
            package.no_such_name  # noqa: B018


def test_the_default_balancer_of_every_preset_is_right():
    """It is not checked when a config is made, so that --help needs no torch: it is here."""
    from equipoise.training.config import TRAINING_PRESETS, preset

    for name in TRAINING_PRESETS:
        config = preset(name)
        config.make_balancer(config.model.num_experts, config.model.top_k)


def test_other_balancers_are_checked_when_a_config_is_made():
    from equipoise.training.config import preset

    with pytest.raises(ValueError, match="no balancer 'deepsek'"):
        preset("tiny", balancer="deepsek")
    with pytest.raises(TypeError, match="has no option"):
        preset("tiny", balancer_options={"rate": 1.0})
    with pytest.raises(ValueError, match="no score function"):
        preset("tiny", model={"score": "softmix"})
