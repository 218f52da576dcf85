"""What the documents show is right: cheap Python is run, the rest compiled and its names looked up;
commands are parsed, and trainings run at a small size in the order a reader meets them.
"""

import ast
import importlib.util
import inspect
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

import equipoise
from equipoise.cli import VERBS, build_parser, main
from equipoise.cli.train import read_train_flags
from tests.attach.own_models import InGroups, OwnModel
from tests.cli.test_help_examples import SMALL_TRAINING, command_words

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
VERB_NAMES = {verb.name for verb in VERBS}


def python_blocks(text):
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def command_lines(text):
    """Lines of commands, indented or in a fence of a shell or of no language, without the remarks
    that stand behind them after two or more spaces.
    """
    fenced = "\n".join(re.findall(r"^```(?:sh)?\n(.*?)^```", text, flags=re.M | re.S))
    commands = r"((?:equipoise|torchrun|EQUIPOISE_\w+=\S+ equipoise) .*)$"
    lines = re.findall(rf"^    {commands}", text, flags=re.MULTILINE)
    lines += re.findall(rf"^{commands}", fenced, flags=re.MULTILINE)
    return [re.sub(r"^EQUIPOISE_\S+ ", "", re.split(r"\s{2,}|\s#", line)[0]) for line in lines]


def inline_commands(text):
    """`equipoise verb ...` in running text; a verb alone names it and is no command."""
    found = re.findall(r"`equipoise ([a-z][^`]*)`", text)
    return [" ".join(each.split()) for each in found]


COMMANDS = [(name, line) for name, text in DOCUMENTS.items() for line in command_lines(text)]
INLINE = [(name, line) for name, text in DOCUMENTS.items() for line in inline_commands(text)]
BLOCKS = [
    pytest.param(name, block, id=f"{name}:{number}")
    for name, text in DOCUMENTS.items()
    for number, block in enumerate(python_blocks(text))
]


@pytest.mark.parametrize(("document", "line"), COMMANDS)
def test_every_command_is_understood(document, line, place):
    words = command_words(line)
    if words[:1] in ([], ["help"]):
        assert set(words[1:]) <= VERB_NAMES
        return
    build_parser().parse_args(words)
    if words[0] == "train":
        # a config of an earlier line, which the folder here calls otherwise
        read_train_flags(re.sub(r"runs/\w+/config", "runs/a/config", word) for word in words[1:])


@pytest.mark.parametrize(("document", "line"), INLINE)
def test_every_command_in_a_sentence_is_understood(document, line, place):
    words = shlex.split(line)
    assert words[0] in VERB_NAMES
    if len(words) > 1 and words[1] != "--help":
        build_parser().parse_args(words)


def other_commands(pattern):
    """(document, what the pattern's group found) of everything else that is to be typed."""
    return [(name, each) for name, text in DOCUMENTS.items() for each in re.findall(pattern, text)]


def test_make_has_what_documents_ask_of_it():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    asked = other_commands(r"(?:^ *|`)make ([a-z-]+)(?=[ `\n]|$)")
    assert len(asked) >= 5
    assert [each for each in asked if each[1] not in targets] == []


def test_scripts_that_documents_name_are_there():
    scripts = other_commands(r"python ((?:benchmarks|examples|docs|tests)/[\w/]+\.py)")
    modules = other_commands(r"python -m ((?:tests|equipoise)[\w.]*)")
    assert len(scripts) >= 8
    assert [each for each in scripts if not (ROOT / each[1]).exists()] == []
    assert [each for each in modules if importlib.util.find_spec(each[1]) is None] == []


def test_extras_that_documents_install_are_there():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = other_commands(r"pip install '?(?:\.|equipoise)\[([\w,-]+)\]")
    assert len(asked) >= 3
    wanted = {(name, extra) for name, extras in asked for extra in extras.split(",")}
    assert {each for each in wanted if each[1] not in known["optional-dependencies"]} == set()


def test_commands_are_seen_wherever_they_stand():
    text = """\
    equipoise demo --steps 3     a remark
```sh
equipoise arena  # a remark
EQUIPOISE_WATCH_TOKEN=... equipoise watch runs/a
```
```python
equipoise = 1
```
"""
    expected = ["equipoise demo --steps 3", "equipoise arena", "equipoise watch runs/a"]
    assert command_lines(text) == expected


def test_trainings_do_not_stand_in_each_others_way(place, tmp_path, monkeypatch, capsys):
    """README's first, then those of the documents, in one folder."""
    monkeypatch.chdir(tmp_path / "my_texts")
    Path("my_texts").symlink_to(tmp_path / "my_texts")
    lines = [line for _, line in COMMANDS if line.startswith("equipoise train ")]
    assert len(lines) >= 5
    for line in lines:
        small = "--steps 2" if "--config" in line else SMALL_TRAINING
        small = "" if "--resume" in line else small
        assert main([*command_words(line), *small.split()]) == 0, (line, capsys.readouterr().err)


def how_to_names():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(1))
    balancer, other = (equipoise.balancer("deepseek", 64, top_k=6) for _ in range(2))
    scores, layer = torch.rand(32, 64), equipoise.MoE(16, 8, 8, 2, look_ahead=32)
    hidden = torch.rand(4, 8, 16)
    return {
        "balancer": balancer,
        "scores": scores,
        "micro_batches": torch.rand(3, 32, 64),
        "optimizer": torch.optim.SGD([weight], lr=0.1),
        "balancers": {"layer": other},
        "tallies": {"layer": other.tally(scores, other.route(scores))},
        "data_parallel_group": None,
        "model": layer,
        "layer": layer,
        "hidden": hidden,
        "evaluate": lambda model: model(hidden),
        "logits": torch.randn(2, 16, 64),
        "loss": torch.zeros(()),
    }


def hugging_face_names():
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained("my-model").train()
    ids = torch.randint(0, 64, (2, 8))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "batches": [{"input_ids": ids, "labels": ids}] * 2,
        "Trainer": lambda model, arguments, train_dataset, callbacks: callbacks[0],
        "arguments": None,
        "texts": None,
        "folder": "out",
    }


def own_layers_names():
    layer, outside = (
        torch.nn.Sequential(equipoise.LayerBalancer("deepseek", 8, 2)),
        OwnModel(InGroups),
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    names = {"model": layer, "optimizer": optimizer, "other_model": outside}
    return {**names, "hidden": torch.randn(2, 8, 16)}


def replay_names():
    from transformers import AutoModelForCausalLM

    # in evaluation, where a replay has no shift to warn of
    model = AutoModelForCausalLM.from_pretrained("my-model").eval()
    ids = torch.randint(0, 64, (2, 8))
    batch = {"input_ids": ids, "labels": ids}
    balancing = equipoise.balance(model, "deepseek")
    with balancing.record_experts() as recording:
        model(**batch)
    balancing.detach()
    return {"model": model, "batch": batch, "experts": recording}


def trace_names():
    balancer, scores = equipoise.balancer("deepseek", 8, top_k=6), torch.rand(128, 8)
    return {
        "step": 0,
        "layer": 0,
        "before": balancer.shift.clone(),
        "balancer": balancer,
        "tally": balancer.tally(scores, balancer.route(scores)),
        "scores": scores,
    }


# what a reader of these has at hand; blocks of other documents need none
AT_HAND = {
    "docs/how-to.md": how_to_names,
    "docs/hugging-face.md": hugging_face_names,
    "docs/inspecting.md": hugging_face_names,
    "docs/own-layers.md": own_layers_names,
    "docs/replay.md": replay_names,
    "docs/theory/verify.md": trace_names,
}
# by tests of their own, which also look at what came of it
RUN_ELSEWHERE = ("README.md", "CONTRIBUTING.md", "docs/extending.md")
TOO_EXPENSIVE = {
    "docs/arena.md:0": "records a model of one's own",
    "docs/hugging-face.md:3": "needs peft; examples/balance_with_lora.py runs it",
    "docs/precision.md:1": "needs trl; a slow test runs it",
    "docs/training.md:0": "a training of 300 steps",
}


@pytest.mark.parametrize(("document", "block"), BLOCKS)
def test_python_names_what_there_is(document, block):
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("equipoise"):
            module = importlib.import_module(node.module)
            assert not [each.name for each in node.names if not hasattr(module, each.name)]
        if isinstance(node, ast.Call) and re.fullmatch(r"equipoise\.\w+", ast.unparse(node.func)):
            function = getattr(equipoise, node.func.attr)
            keywords = {each.arg: None for each in node.keywords if each.arg is not None}
            inspect.signature(function).bind_partial(*node.args, **keywords)


@pytest.mark.parametrize(
    ("document", "block"),
    [
        each
        for each in BLOCKS
        if each.id not in TOO_EXPENSIVE and each.values[0] not in RUN_ELSEWHERE
    ],
)
def test_cheap_python_runs(document, block, place, capsys):
    names = {"equipoise": equipoise, "torch": torch, **AT_HAND.get(document, dict)()}
    if AT_HAND.get(document) is hugging_face_names and "balancing = " not in block:
        names["balancing"] = equipoise.balance(names["model"], "deepseek")
    if "run/trace" in block:
        shutil.rmtree("run/trace")
    exec(compile(block, document, "exec"), names)


def test_what_is_not_run_is_there():
    assert TOO_EXPENSIVE.keys() <= {each.id for each in BLOCKS}


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "README.md"])
def test_python_stands_in_fences(document):
    """Where it is found by the tests above."""
    indented = re.findall(r"^    .*$", DOCUMENTS[document], flags=re.MULTILINE)
    outside = set(indented) - {
        line for block in python_blocks(DOCUMENTS[document]) for line in block.splitlines()
    }
    looks_like_python = re.compile(r"equipoise\.\w+\(|balanc\w+\.\w+\(|^ +(from \S+ )?import \w+$")
    assert not [line for line in outside if looks_like_python.search(line)]
