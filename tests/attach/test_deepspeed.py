"""DeepSpeed's own ZeRO-3, on the CPU: a model that it has cut up is balanced as a whole one is.

DeepSpeed is not among our dependencies: a slow test fetches it into a folder of its own. It is
built for no GPU, and one process is enough for it to cut parameters up.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import equipoise
from tests.attach.tools import batch, forward, tiny

SETTINGS = {
    "train_micro_batch_size_per_gpu": 3,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}
ONE_PROCESS = {
    "DS_ACCELERATOR": "cpu",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}


@pytest.fixture
def cut_up(monkeypatch):
    """A function that gives a model to DeepSpeed."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed; a slow test fetches it")
    for name, value in ONE_PROCESS.items():
        monkeypatch.setenv(name, value)
    import deepspeed

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def initialize(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=SETTINGS)[0]
        assert next(model.parameters()).shape == (0,)
        return engine

    return initialize


def train(engine, balancing):
    for seed in range(3):
        engine.backward(forward(engine, batch(seed)))
        engine.step()
        balancing.step()
    shifts = [router.applied_shift.tolist() for router in balancing.routers]
    return shifts, balancing.metrics(loads=True)["loads"]


@pytest.mark.parametrize(("name", "rule"), [("deepseek_v3", "deepseek"), ("qwen3_moe", "quantile")])
def test_balanced_after_cutting_up_as_before(name, rule, cut_up, tmp_path):
    model = tiny(name)
    early = equipoise.balance(model, rule)
    expected = train(cut_up(model), early)
    engine = cut_up(tiny(name))
    late = equipoise.balance(engine, rule)
    assert train(engine, late) == expected
    # what was saved of weights in parts is compared with nothing
    late.save(tmp_path)
    whole = equipoise.balance(tiny(name), rule).load(tmp_path)
    assert whole.routers[0].applied_shift.tolist() == expected[0][0]


def train_whole(model):
    """The same without DeepSpeed."""
    balancing = equipoise.balance(model, "deepseek")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for seed in range(3):
        forward(model, batch(seed)).backward()
        optimizer.step()
        optimizer.zero_grad()
        balancing.step()
    shifts = [router.applied_shift.tolist() for router in balancing.routers]
    return shifts, balancing.metrics(loads=True)["loads"]


@pytest.mark.parametrize("name", ["ernie4_5_moe", "afmoe", "laguna"])
def test_a_bias_that_is_a_parameter_becomes_whole(name, cut_up):
    expected = train_whole(tiny(name))
    model = tiny(name)
    early = equipoise.balance(model, "deepseek")
    assert train(cut_up(model), early) == expected
    engine = cut_up(tiny(name))
    late = equipoise.balance(engine, "deepseek")
    assert train(engine, late) == expected
    bias = late.routers[0].found.bias
    saved = engine._zero3_consolidated_16bit_state_dict()[bias.path]
    assert saved.flatten().tolist() == late.routers[0].applied_shift.tolist()


def test_a_training_that_has_begun_goes_on(cut_up):
    """DeepSpeed prefetches parameters in the order of the first step."""
    engine = cut_up(tiny("ernie4_5_moe"))
    for seed in range(2):
        engine.backward(forward(engine, batch(seed)))
        engine.step()
    engine.eval()
    forward(engine, batch())
    engine.train()
    shifts, _ = train(engine, equipoise.balance(engine, "deepseek"))
    assert any(shifts[0])


def test_a_trained_bias_that_is_cut_up_is_refused(cut_up):
    model = tiny("ernie4_5_moe")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or "correction_bias" in name)
    with pytest.raises(ValueError, match=r"correction_bias is a parameter that is trained"):
        equipoise.balance(cut_up(model))


@pytest.mark.slow
def test_deepspeed_is_fetched_and_tried(tmp_path):
    """The tests above, in a process that has DeepSpeed 0.19.8."""
    packages = ("deepspeed==0.19.8", "hjson", "ninja", "py-cpuinfo", "einops")
    fetch = ("install", "--quiet", "--no-deps", "--target", str(tmp_path), *packages)
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", *fetch],
        env={**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(f"DeepSpeed cannot be fetched here: {fetched.stderr[-200:]}")
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(tmp_path), str(root / "src")])
    # DeepSpeed builds a C++ operator at its first start. In the user's own cache a build that was
    # killed leaves a lock, for which every later start waits without end
    built = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    test = str(Path(__file__).relative_to(root))
    options = ("-q", "-p", "no:cacheprovider", "-m", "not slow", "-W", "ignore")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *options, test],
        cwd=root,
        env={**os.environ, **ONE_PROCESS, **built, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert "7 passed" in finished.stdout, finished.stdout[-3000:] + finished.stderr[-2000:]
