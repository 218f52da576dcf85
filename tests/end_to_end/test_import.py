"""`import equipoise` is quick: nothing heavy until it is needed."""

import subprocess
import sys

import pytest

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
