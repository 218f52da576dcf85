"""What the README shows runs, and what it lists is there."""

import re
from pathlib import Path

import pytest

import equipoise

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# run with the package they need, by the slow tests that fetch it
RECIPES = "tests/end_to_end/test_trainer_recipes.py"
FETCHED = {
    "balance_torchtitan.py": "tests/integrations/torchtitan/test_real_releases.py",
    "balance_with_llamafactory.py": RECIPES,
    "balance_with_ms_swift.py": "tests/integrations/test_ms_swift.py",
    "balance_with_trl_dpo.py": RECIPES,
    "balance_with_trl_grpo.py": RECIPES,
    "balance_with_trl_sft.py": RECIPES,
}
TRAIN_LONGER = {
    "balance_my_own_loop.py",
    "balance_with_lora.py",
    "balance_with_trainer.py",
    "choose_a_balancer.py",
    "mend_collapsed_experts.py",
}


def code_blocks():
    return re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_code_runs():
    names = {}
    for block in code_blocks():
        exec(compile(block, "README.md", "exec"), names)
    assert names["balancer"].steps > 0
    assert names["balancer"].shift.any()


def test_it_is_short():
    assert len(README.split()) <= 750
    assert README.count("\n") <= 110


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target.startswith("https://arxiv.org/") or (ROOT / target).exists(), target


@pytest.mark.parametrize("name", equipoise.balancers())
def test_every_balancer_is_listed(name):
    assert f"| `{name}`" in (ROOT / "docs/balancers.md").read_text()


def test_the_tree_is_true():
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where a change goes")[0]
    shown = set(re.findall(r"`([a-z]+)/`(?=[^|]*\|[^|]*\|$)", tree, flags=re.MULTILINE))
    there = {
        path.name for path in (ROOT / "src/equipoise").iterdir() if not path.name.startswith("_")
    } - {"py.typed"}
    assert shown == there


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, id=path.name, marks=pytest.mark.slow if path.name in TRAIN_LONGER else ()
        )
        for path in EXAMPLES
        if path.name not in FETCHED
    ],
)
def test_examples_run(path, capsys):
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_there_are_examples():
    assert EXAMPLES


def test_the_other_examples_are_run_elsewhere():
    for name, test in FETCHED.items():
        stem, text = Path(name).stem, (ROOT / test).read_text()
        # by its name, or by one that ends in what the test fills in
        assert stem in text or stem.rpartition("_")[0] + "_{" in text
