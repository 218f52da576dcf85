"""Text to train on that every clone has, and a cache of the tests' own."""

from pathlib import Path

import pytest

from tests.training.micro import small_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder of text files: the project's own papers."""
    folder = tmp_path_factory.mktemp("texts")
    for path in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"):
        (folder / path.name).write_text(path.read_text())
    return folder


@pytest.fixture
def micro(texts, tmp_path):
    """Makes configs of a training that takes a second."""
    return lambda **changes: small_config(texts, **{"out": str(tmp_path / "run"), **changes})
