"""The examples in --help are right: the cheap ones are run at small sizes, all others parsed."""

import shlex

import pytest

from equipoise.cli import VERBS, build_parser, main
from equipoise.cli.train import read_train_flags
from tests.training.micro import MODEL

EXAMPLES = [(verb, example) for verb in VERBS for example in verb.examples]
SMALL_DEMO = "--steps 6 --tokens 256 --experts 8 --top-k 2"
SMALL_ARENA = "--steps 3 --tokens 256 --workers 1 --balancers none quantile --rates 0.5"
SMALL_TUNE = "--balancers none quantile --rates 0.5 --workers 1"
SMALL_SIMULATION = "--layers 1 --steps 3 --pool 64"
SMALL_TRAINING = (
    "--steps 2 --batch-size 4 --warmup-steps 1 --validation-sequences 8 --data my_texts "
    + " ".join(f"--model.{name.replace('_', '-')} {size}" for name, size in MODEL.items())
)
# what is really run, with what makes it small; the others are too expensive, and only parsed
RUN = {
    "equipoise demo": SMALL_DEMO,
    "equipoise demo --drift 0.02 --balancers deepseek quantile": SMALL_DEMO,
    "equipoise demo --steps 50 --json": SMALL_DEMO,
    "equipoise arena": SMALL_ARENA,
    "equipoise arena drift --balancers deepseek curvature --rates 1e-4 1e-3": SMALL_ARENA,
    "equipoise arena runs/a --out runs/arena": SMALL_ARENA,
    "equipoise arena e256-groups --devices 64 --json": SMALL_ARENA,
    "equipoise arena drift topics --page arena.html": SMALL_ARENA,
    "equipoise arena scores/c": SMALL_ARENA,
    "equipoise tune drift": f"--steps 24 --tokens 256 {SMALL_TUNE}",
    "equipoise tune scores/a:blocks.1 --json": SMALL_TUNE,
    "equipoise record runs/a --out scores/a": "--batches 2 --out scores/new",
    "equipoise record runs/a --data my_texts/ --batches 50 --out scores/b": "--batches 2",
    "equipoise solve scores.npy --top-k 6": "",
    "equipoise solve layers.safetensors --name layer3 --top-k 8 --shift shift.npy": "",
    "equipoise solve scores.npy --top-k 6 --out optimum.npz --json": "",
    "equipoise verify runs/a": "--batches 2",
    "equipoise verify run/trace --details": "--batches 2",
    "equipoise verify run/trace --json": "--batches 2",
    "equipoise train --preset tiny --balancer deepseek --update-rate 1e-3 --out runs/a": (
        f"{SMALL_TRAINING} --out runs/new"
    ),
    "equipoise train --config runs/a/config.yaml --resume": "",
    "equipoise train --config runs/a/config.yaml --update-rate 3e-3 --out runs/b": "--steps 2",
    "equipoise train --data my_texts/ --model.hidden-size 128 --out runs/c": SMALL_TRAINING,
    "equipoise plan deepseekmoe-1b --gpus 8": "",
    "equipoise plan deepseekmoe-3b --gpus 16 --gpu A100 --imbalance 0.3 --json": "",
    "equipoise place runs/a --devices 4": "",
    "equipoise place loads.npy --devices 8 --redundant 8 --distinct --out placed": "",
    "equipoise place loads.npy --devices 8 --nodes 2 --groups 4 --json": "",
    "equipoise place loads.npy --devices 4 --picture devices.png": "",
    "equipoise plan deepseek-v3 --cluster h800-2048 --hidden 1 --price 2": "",
    "equipoise simulate deepseek-v3 h800-2048 --layers 4 --steps 200": SMALL_SIMULATION,
    "equipoise simulate grug-250b gb200-64 --balancers deepseek curvature --page lost.html": (
        SMALL_SIMULATION
    ),
    "equipoise sweep paper --dry-run": "",
    "equipoise report results": "",
    "equipoise report runs/a --out a.html": "",
    "equipoise report results/rows.json --markdown": "",
    "equipoise export runs/a --out exported-model": "",
    "equipoise doctor ./my-model": "--tokens 64",
    "equipoise doctor ./my-model --json": "--tokens 64",
}


def command_words(example):
    """What follows `equipoise` in an example, without remarks and redirections."""
    words = shlex.split(example, comments=True)
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    assert words[0] == "equipoise"
    return words[1 : words.index(">") if ">" in words else None]


def command_of(example):
    return shlex.join(["equipoise", *command_words(example)])


@pytest.mark.parametrize("example", [example for _, example in EXAMPLES])
def test_every_example_is_understood(example, place):
    words = command_words(example)
    options = build_parser().parse_args(words)
    if words[0] == "train":
        read_train_flags(options.arguments)


@pytest.mark.parametrize("command", RUN)
def test_cheap_examples_run(command, place, capsys):
    assert main([*shlex.split(command)[1:], *RUN[command].split()]) == 0
    assert capsys.readouterr().out


def test_what_is_run_are_examples():
    assert set(RUN) <= {command_of(example) for _, example in EXAMPLES}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_examples_of_its_own(verb, capsys):
    assert any(command_words(example)[0] == verb.name for example in verb.examples)
    with pytest.raises(SystemExit):
        main([verb.name, "--help"])
    assert "examples:" in capsys.readouterr().out


def test_a_wrong_flag_would_be_seen():
    with pytest.raises(SystemExit):
        build_parser().parse_args(command_words("equipoise sweep demo --at-the-same-time 2"))
    with pytest.raises(SystemExit):
        read_train_flags(["--no-such-setting", "1"])
