"""Every verb is a public function of the same arguments; old flags and arguments say new ones."""

import argparse
import dataclasses
import inspect
import subprocess
import sys

import pytest

import equipoise
from equipoise.cli import VERBS, build_parser, main
from equipoise.storage.renamed import accept_old_argument
from equipoise.training import Config

RENAMED = {"arena": "run_arena", "report": "write_report", "watch": "watch_runs"}
"""verbs whose name is that of a package, which `import equipoise.arena` would put in its place"""
TRAIN = "train"
"""its flags are the fields of its one argument, a Config (tests/training/test_config.py)"""
ON_THE_COMMAND_LINE_ONLY = {
    "advise": {"page": "what is shown"},
    "agree": {"page": "what is shown"},
    "doctor": dict.fromkeys(
        ("text", "precision", "batches", "allow", "page"), "equipoise.router_precision in Python"
    ),
    "plan": dict.fromkeys(
        ("cluster", "price", "hidden", "expert_parallel"), "equipoise.step_time in Python"
    ),
    "simulate": {"page": "what is shown"},
    "arena": {"every_rate": "what is shown", "page": "what is shown"},
    "solve": {
        "file": "Python has the scores themselves",
        "name": "of an array in the file",
        "out": "Python has the solution itself",
    },
    "place": {
        "device_hours": "what is shown: Placement.rows in Python",
        "out": "Placement.save in Python",
        "model_layers": "an argument of Placement.save in Python",
        "picture": "drawn: placement.picture.draw_placement in Python",
    },
    "verify": {"details": "what is shown"},
    "compare": {"search": "what is shown"},
    "sweep": {"dry_run": "what is shown: read_grid(...).trials(...) in Python"},
    "report": {
        "markdown": "printed instead of a page",
        "search": "printed instead of a page",
        "animate": "drawn instead of a page: report.animation.loads.animate_loads in Python",
    },
}
DEFAULT_DEPENDS = {"plan": {"gpus", "gpu", "imbalance", "utilization"}, "agree": {"ulps"}}
"""options whose default another option decides; without it, it is the function's"""
IN_PYTHON_ONLY = {"scores", "progress", "on_progress", "on_batch", "changes"}
"""what the command line reads from a file or shows on the terminal, and free settings of Config"""


def function_of(verb):
    return getattr(equipoise, RENAMED.get(verb.name, verb.name))


def options_of(verb):
    """The actions of a verb's parser by their name, without --help, --json and old spellings."""
    parser = build_parser()._subparsers._group_actions[0].choices[verb.name]
    hidden = {"help", "json", "config", *ON_THE_COMMAND_LINE_ONLY.get(verb.name, {})}
    return {
        action.dest: action
        for action in reversed(parser._actions)
        if action.dest not in hidden and action.help != argparse.SUPPRESS
    }


WITH_OPTIONS = [verb for verb in VERBS if verb.name != TRAIN]


@pytest.mark.parametrize("verb", WITH_OPTIONS, ids=lambda verb: verb.name)
def test_every_option_is_an_argument_with_the_same_default(verb):
    arguments = inspect.signature(function_of(verb)).parameters
    for name, option in options_of(verb).items():
        if name not in arguments:
            # a setting of the training, which changes the preset's if given
            assert "changes" in arguments
            assert name in Config.__dataclass_fields__
            assert option.default is None
        elif name in DEFAULT_DEPENDS.get(verb.name, ()):
            assert option.default is None
            assert "default" in option.help
        elif option.required:
            assert arguments[name].default is inspect.Parameter.empty
        else:
            assert arguments[name].default == option.default


@pytest.mark.parametrize("verb", WITH_OPTIONS, ids=lambda verb: verb.name)
def test_every_argument_is_an_option(verb):
    arguments = set(inspect.signature(function_of(verb)).parameters)
    assert arguments - IN_PYTHON_ONLY <= set(options_of(verb))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_is_documented_in_python_too(verb):
    assert RENAMED.get(verb.name, verb.name) in equipoise.__all__
    assert inspect.getdoc(function_of(verb))
    assert verb.help
    assert verb.examples


def test_packages_and_functions_do_not_hide_each_other():
    """`import equipoise.arena` makes `equipoise.arena` the package: functions have other names."""
    code = (
        "import equipoise, equipoise.arena.cells, equipoise.report, equipoise.experiments.sweep\n"
        "import importlib, types\n"
        "for home in set(equipoise._HOMES.values()): importlib.import_module(home)\n"
        "names = [name for name in equipoise.__all__\n"
        "         if isinstance(getattr(equipoise, name), types.ModuleType)]\n"
        "assert isinstance(equipoise.arena, types.ModuleType)\n"
        "rows = equipoise.run_arena(['thin-e4'], balancers=['none'], steps=3, workers=1).rows\n"
        "print(names, len(rows), callable(equipoise.write_report))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.split("\n")[0] == "[] 1 True", answer.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom equipoise.cli import build_parser\nbuild_parser().format_help()\n"
        "print([name for name in ('torch', 'numpy', 'rich', 'tyro') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "[]\n", answer.stderr


def test_report_imports_no_torch():
    code = (
        "import sys, equipoise\nequipoise.write_report\n"
        "import equipoise.cli.report\nprint('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "False\n", answer.stderr


@pytest.mark.parametrize(
    ("words", "old", "new", "name", "value"),
    [
        ("compare --at-once 3", "--at-once", "--workers", "workers", 3),
        ("sweep demo --jobs 2", "--jobs", "--workers", "workers", 2),
        ("record runs/a --out x --steps 4", "--steps", "--batches", "batches", 4),
        ("record runs/a --out x --layer a b", "--layer", "--layers", "layers", ["a", "b"]),
    ],
)
def test_old_flags_say_the_new_ones(words, old, new, name, value, capsys):
    options = build_parser().parse_args(words.split())
    assert getattr(options, name) == value
    assert capsys.readouterr().err == f"equipoise: {old} is now called {new}\n"


@pytest.mark.parametrize("verb", ["compare", "sweep", "record"])
def test_old_flags_are_not_in_the_help(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    words = capsys.readouterr().out.replace("[", " ").replace("]", " ").split()
    assert not {"--at-once", "--jobs", "--layer"} & set(words)
    assert verb != "record" or "--steps" not in words


def test_defaults_stay_where_there_is_an_old_spelling():
    assert build_parser().parse_args(["sweep", "demo"]).workers == 1
    assert build_parser().parse_args(["record", "a", "--out", "b"]).batches == 30
    assert build_parser().parse_args(["compare"]).workers is None


def test_old_arguments_say_the_new_ones():
    @accept_old_argument("at_once", "workers")
    def work(workers=1):
        return workers

    with pytest.warns(FutureWarning, match="work: the argument at_once is now called workers"):
        assert work(at_once=3) == 3
    assert work(workers=2) == 2
    with pytest.raises(TypeError, match="give workers alone"):
        work(at_once=1, workers=2)


@pytest.mark.parametrize("function", [equipoise.compare, equipoise.sweep])
def test_parallelism_has_one_name_in_python(function):
    assert "workers" in inspect.signature(function).parameters


@pytest.mark.parametrize("name", ["run[lr=1e-3]", "[red]x[/nope]"])
def test_brackets_in_a_stream_are_no_markup(name, capsys):
    """A folder or a layer may have any name: it is shown as it is, after all the work."""
    from equipoise.cli.arena import _show_cells

    results = equipoise.demo(["none"], steps=3, tokens=64, experts=8, top_k=2)
    rows = [dataclasses.replace(row, stream=name) for row in results.rows]
    _show_cells(dataclasses.replace(results, rows=rows), every_rate=True)
    assert f"{name}: floor" in capsys.readouterr().out
