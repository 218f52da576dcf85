"""`import equipoise` is quick: nothing heavy until it is needed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from equipoise.cli import VERBS
from equipoise.storage.optional import import_optional


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_import_pulls_in_nothing_heavy():
    code = (
        "import sys, equipoise; print([name for name in ('torch', 'numba', 'transformers') "
        "if name in sys.modules])"
    )
    assert python(code) == "[]"


def test_balancing_pulls_in_neither_numba_nor_transformers():
    use = "import sys, equipoise; equipoise.balancer('quantile', 8, top_k=2); "
    assert (
        python(use + "print('numba' in sys.modules, 'transformers' in sys.modules)")
        == "False False"
    )


def test_public_names_exist():
    assert (
        python(
            "import equipoise; print(all(hasattr(equipoise, name) for name in equipoise.__all__))"
        )
        == "True"
    )


def test_public_names_are_listed():
    import equipoise

    assert set(equipoise.__all__) == set(equipoise._HOMES) <= set(dir(equipoise))


def test_unknown_names_are_refused():
    import equipoise

    with pytest.raises(AttributeError, match="no attribute 'balanser'"):
        equipoise.balanser  # noqa: B018


def test_missing_packages_name_their_extra():
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'equipoise\[report\]'"):
        import_optional("no_such_package.inside", extra="report")


@pytest.mark.parametrize(
    ("verb", "extra"), [("train", "train"), ("compare", "train"), ("demo", "report")]
)
def test_a_verb_without_torch_names_its_extra(verb, extra):
    """torch is imported plainly, everywhere: the error of a verb must still say what to do."""
    hidden = f"""
import sys
sys.modules["torch"] = None
from equipoise.cli import main
sys.stderr = sys.stdout
print(main([{verb!r}]))
"""
    told = python(hidden)
    assert f"needs 'torch', which is not installed: pip install 'equipoise[{extra}]'" in told
    assert told.endswith("2")


def test_every_extra_of_a_verb_is_there():
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {verb.extra for verb in VERBS} <= extras.keys()
