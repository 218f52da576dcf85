"""One dialect: help, misspelt verbs, --config, lists, folders and completion, for all verbs."""

import subprocess
import sys

import pytest

from equipoise.cli import VERBS, build_parser, main
from equipoise.cli.train import read_train_flags
from equipoise.training import preset
from equipoise.training.config import read_config

NAMES = [verb.name for verb in VERBS]
WITH_CONFIG = [name for name in NAMES if name != "train"]
POSITIONAL = {
    "tune": ["drift"],
    "advise": ["drift"],
    "watch": ["runs/a"],
    "record": ["runs/a", "--out", "x"],
    "solve": ["s.npy", "--top-k", "2"],
    "plan": ["tiny"],
    "place": ["runs/a", "--devices", "4"],
    "simulate": ["tiny", "h100-8"],
    "sweep": ["demo"],
    "report": ["results"],
    "export": ["runs/a", "--out", "x"],
    "doctor": ["model"],
    "agree": ["a.npz", "b.npz"],
}


def shown(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_in_every_spelling(capsys):
    text = shown(["--help"], capsys)
    assert shown([], capsys) == shown(["help"], capsys) == text
    assert all(f"    {name} " in text for name in NAMES)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_verb(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(["help", name], capsys)
    assert text == shown([name, "--help"], capsys)
    assert "--config" in text
    # commands are not broken
    described = text.split("examples:")[0]
    assert name == "train" or max(map(len, described.splitlines())) <= 80


@pytest.mark.parametrize("words", [["trian"], ["help", "trian"]])
def test_a_misspelt_verb(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "no verb 'trian' (did you mean 'train'?)" in capsys.readouterr().err


def config_file(folder, text, name="options.yaml"):
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_every_verb_refuses_an_unknown_name(name, tmp_path, capsys):
    """And says where it stands: also where a word that must be given is missing."""
    path = config_file(tmp_path, "no_such_option: 3")
    with pytest.raises(SystemExit) as stop:
        main([name, *POSITIONAL.get(name, []), "--config", path])
    assert stop.value.code == 2
    assert f"{path}: no option 'no_such_option'" in capsys.readouterr().err


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_an_empty_file_changes_nothing(name, tmp_path):
    words = [name, *POSITIONAL.get(name, [])]
    path = config_file(tmp_path, "")
    plain, read = (
        vars(build_parser().parse_args([*words, *more])) for more in ([], ["--config", path])
    )
    assert read == plain | {"config": path}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.yaml", "steps: 50\ndrift: 1e-3\ntop-k: 2\nbalancers: [deepseek, quantile]\njson: true"),
        (
            "a.toml",
            'steps = 50\ndrift = 1e-3\ntop_k = 2\nbalancers = "deepseek,quantile"\njson = true',
        ),
    ],
)
def test_flags_win_over_a_file(file, text, tmp_path):
    path = config_file(tmp_path, text, file)
    options = build_parser().parse_args(["demo", f"--config={path}", "--steps", "7"])
    assert (options.steps, options.drift, options.top_k, options.json) == (7, 1e-3, 2, True)
    assert options.balancers == ["deepseek", "quantile"]
    options = build_parser().parse_args(["demo", "--config", path, "--balancers", "none"])
    assert (options.steps, options.balancers) == (50, ["none"])


def test_a_file_gives_what_must_be_given(tmp_path):
    path = config_file(tmp_path, "file: s.npy\ntop_k: 3")
    options = build_parser().parse_args(["solve", "--config", path])
    assert (options.file, options.top_k) == ("s.npy", 3)
    assert build_parser().parse_args(["solve", "b.npy", "--config", path]).file == "b.npy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: many", "steps must be of the kind int, not 'many'"),
        ("steps: [1, 2]", "steps must be one value, not [1, 2]"),
        ("json: 3", "json must be true or false, not 3"),
        ("stepz: 3", "no option 'stepz' (did you mean 'steps'?)"),
        ("- 3", "must hold lines of the form 'name: value'"),
        ("a: b: c", "is not YAML"),
        ("help: true", "no option 'help'"),
    ],
)
def test_a_wrong_file_is_explained(text, message, tmp_path, capsys):
    path = config_file(tmp_path, text)
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--config", path])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--config", "nowhere.yaml"], ["--config"], ["--conf", "a"]])
def test_a_file_that_cannot_be_read(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["demo", *words])
    assert stop.value.code == 2
    assert "--conf" in capsys.readouterr().err


def test_choices_hold_in_files_too(tmp_path, capsys):
    path = config_file(tmp_path, "parallel: tensor")
    with pytest.raises(SystemExit):
        main(["plan", "tiny", "--config", path])
    assert "parallel must be ddp or fsdp, not 'tensor'" in capsys.readouterr().err


def test_train_reads_toml_too(tmp_path):
    path = config_file(tmp_path, 'preset = "small"\nsteps = 5\n[model]\nhidden_size = 64', "a.toml")
    assert read_config(path) == preset("small", steps=5, model={"hidden_size": 64})


@pytest.mark.parametrize(
    ("words", "name", "values"),
    [
        ("arena drift,topics", "streams", ["drift", "topics"]),
        ("arena drift topics", "streams", ["drift", "topics"]),
        ("arena --rates 1e-4,1e-3 0.5", "rates", [1e-4, 1e-3, 0.5]),
        ("arena --schemes none,deepseek", "balancers", ["none", "deepseek"]),
        ("tune drift --balancers none, deepseek", "balancers", ["none", "deepseek"]),
        ("demo --balancers none,deepseek", "balancers", ["none", "deepseek"]),
        ("compare --schemes none,deepseek", "schemes", ["none", "deepseek"]),
        ("compare --balancers none deepseek", "schemes", ["none", "deepseek"]),
        ("record runs/a --out x --layers a,b c", "layers", ["a", "b", "c"]),
        ("record runs/a --out x --layer a,b", "layers", ["a", "b"]),
    ],
)
def test_lists_with_commas_or_spaces(words, name, values):
    assert getattr(build_parser().parse_args(words.split()), name) == values


def test_lists_of_a_training():
    for words in ("--histogram-steps 10,20 30", "--histogram_steps=10,20,30"):
        config = read_train_flags([*words.split(), "--steps", "50"])[1]
        assert config.histogram_steps == (10, 20, 30)
        assert config.steps == 50


@pytest.mark.parametrize("words", [["--rates", "fast"], ["--balancers", ","]])
def test_lists_of_nothing_and_of_other_kinds(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["arena", *words])
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_a_folder_with_a_comma_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b").mkdir()
    options = build_parser().parse_args(["arena", "a,b", "a,b:blocks.1", "c,d"])
    assert options.streams == ["a,b", "a,b:blocks.1", "c", "d"]


def test_texts_have_one_name(capsys):
    options = build_parser().parse_args(["record", "runs/a", "--out", "x", "--text", "t"])
    assert options.data == "t"
    assert capsys.readouterr().err == "equipoise: --text is now called --data\n"


def completed(words):
    """What bash offers for the last of these words."""
    script = (
        "source <({python} -m equipoise --completion bash)\n"
        'COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _equipoise; echo "${{COMPREPLY[@]}}"'
    )
    run = subprocess.run(
        ["bash", "-c", script.format(python=sys.executable), "bash", "equipoise", *words],
        capture_output=True,
        text=True,
    )
    assert not run.stderr
    return run.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["train"]),
        (["help", "ver"], ["verify"]),
        (["plan", "tiny", "--parallel", ""], ["ddp", "fsdp"]),
        (["arena", "--every"], ["--every-rate"]),
        (["train", "--update"], ["--update-rate"]),
        (["train", "--model.num-e"], ["--model.num-experts"]),
        (["arena", "dri"], []),
        (["record", "--te"], []),
    ],
)
def test_bash_completes(words, offered):
    assert completed(words) == offered
