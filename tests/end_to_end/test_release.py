"""A release could be made of this tree: one version everywhere, and packages that work."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci/release_check.py"


@pytest.fixture
def release():
    spec = importlib.util.spec_from_file_location("release_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_the_same_everywhere(release):
    release.check_versions()
    assert set(release.versions().values()) == {__import__("equipoise").__version__}


def test_changes_that_wait_are_no_release(release, tmp_path, monkeypatch):
    for name in release.versions():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## ", "## Unreleased\n\n## ", 1))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"not the same everywhere.*Unreleased"):
        release.check_versions()


@pytest.mark.slow
def test_wheel_and_sdist_work_in_a_clean_environment():
    answer = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "the sdist builds the same wheel" in answer.stdout
    assert "with all extras" in answer.stdout
