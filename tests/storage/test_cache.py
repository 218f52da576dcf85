"""Where what takes long to make is kept."""

from equipoise.storage.cache import cache_folder


def test_the_cache_can_be_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("EQUIPOISE_CACHE")
    assert cache_folder().name == "equipoise"
