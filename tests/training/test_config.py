"""One config for Python, files and flags."""

import dataclasses

import pytest

import equipoise
from equipoise.cli.train import parse_config
from equipoise.model import MODELS
from equipoise.training import preset
from equipoise.training.config import TRAINING_PRESETS, read_config, write_yaml
from equipoise.training.schedule import learning_rate
from equipoise.training.settings import differences


@pytest.mark.parametrize("name", TRAINING_PRESETS)
def test_files_say_everything(name, tmp_path):
    config = preset(
        name, balancer="aux", balancer_options={"scope": "sequence"}, histogram_steps=(1, 5)
    )
    (tmp_path / "a.yaml").write_text(write_yaml(config))
    assert read_config(tmp_path / "a.yaml") == config
    assert config.model == MODELS[name]


def test_files_change_a_preset(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "preset: small\nlearning_rate: 1e-4\nmodel:\n  num_experts: 8\n"
    )
    config = read_config(tmp_path / "a.yaml")
    assert config == preset("small", learning_rate=1e-4, model={"num_experts": 8})
    assert config.model.hidden_size == MODELS["small"].hidden_size


def test_flags_change_a_preset():
    flags = (
        "--balancer aux --update-rate 0.1 --balancer-options scope global "
        "--model.num-experts 32 --resume"
    )
    config = parse_config(flags.split(), preset("tiny"))
    assert (config.balancer, config.update_rate, config.resume) == ("aux", 0.1, True)
    assert config.model == dataclasses.replace(MODELS["tiny"], num_experts=32)
    assert config.make_balancer(32, 2).penalties[0].scope == "global"


def test_the_papers_settings():
    config = preset("deepseekmoe-1b")
    assert (config.learning_rate, config.weight_decay, config.steps) == (1e-4, 0.1, 100_000)
    assert config.batch_size * config.model.sequence_length == 262_144
    assert learning_rate(config, 0) == learning_rate(config, 99_999) == 1e-4


def test_u_is_the_weight_of_an_auxiliary_loss():
    assert (
        preset("tiny", balancer="aux", update_rate=0.5).make_balancer(8, 2).penalties[0].coefficient
        == 0.5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rat": 1}, r"no setting 'learning_rat' \(did you mean 'learning_rate'"),
        (
            {"model": {"hiden_size": 1}},
            r"no setting 'model.hiden_size' \(did you mean 'hidden_size'",
        ),
        ({"balancer": "deepseak"}, "did you mean 'deepseek'"),
        ({"balancer": "quantile", "update_rate": 1e-3}, "quantile has no option 'update_rate'"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": "many"}, "steps must be int, not 'many'"),
        ({"steps": True}, "steps must be int, not True"),
        ({"learning_rate": "fast"}, "learning_rate must be float, not 'fast'"),
        ({"final_learning_rate": 2}, "between 0 and 1"),
        ({"parallel": "zero"}, "parallel must be ddp or fsdp, not 'zero'"),
        ({"micro_batch_size": 0}, "micro_batch_size must be at least 1"),
        ({"learning_rate": float("inf")}, "learning_rate must be positive and finite"),
        ({"update_rate": float("nan")}, "update_rate must be finite"),
        ({"weight_decay": -1}, "weight_decay must be finite and not negative"),
        ({"seed": -1}, "seed must be finite and not negative"),
        ({"histogram_steps": 3}, "histogram_steps must be a list, not 3"),
        ({"histogram_steps": [1, 301]}, "from 1 to 300: 301 is none"),
        ({"histogram_steps": ["3"]}, "from 1 to 300: '3' is none"),
        ({"balancer_options": "scope"}, "balancer_options must be lines of the form"),
        ({"model": {"init_std": -1.0}}, "init_std must be positive"),
        ({"model": {"rotary_base": 0.0}}, "rotary_base must be positive"),
        ({"model": {"norm_epsilon": -1.0}}, "norm_epsilon must be finite and not negative"),
    ],
)
def test_mistakes_are_explained(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        preset("tiny", **changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"steps: [3", "config.yaml is not YAML"),
        (b"\tsteps: 3", "config.yaml is not YAML"),
        (b"steps: \xff", "config.yaml is not YAML"),
        (b"- steps", "must hold lines of the form"),
        (b"1: 2", "must hold lines of the form"),
        (b"name: x", "no setting 'name'"),
        (b"preset:", "no preset 'None'"),
    ],
)
def test_files_that_are_no_configs_are_reported(tmp_path, content, message):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_presets_have_near_names():
    with pytest.raises(ValueError, match=r"no preset 'tinny' \(did you mean 'tiny'\?\)"):
        preset("tinny")


def test_differences_are_named():
    one, other = preset("tiny").to_dict(), preset("tiny", seed=1, model={"top_k": 3}).to_dict()
    assert differences(one, other) == {"seed": (0, 1), "model.top_k": (2, 3)}


def test_the_rate_rises_and_falls():
    config = preset("tiny", steps=100, warmup_steps=10, learning_rate=1.0, final_learning_rate=0.1)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert rates[9] == rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)
    assert 0.1 < rates[99] < 0.11
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_every_balancer_can_be_configured():
    for name in equipoise.balancers():
        preset("tiny", balancer=name)
