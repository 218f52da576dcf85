"""Arrays from files: three formats, mapped, never unpickled."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from equipoise.storage.arrays import read_array, write_arrays

SCORES = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(params=["scores.npy", "scores.npz", "scores.safetensors"])
def file(request, tmp_path):
    path = tmp_path / request.param
    if path.suffix == ".npy":
        np.save(path, SCORES)
    elif path.suffix == ".npz":
        np.savez(path, scores=SCORES, other=SCORES + 1)
    else:
        save_file({"scores": SCORES, "other": SCORES + 1}, path)
    return path


def test_reads_what_was_written(file):
    assert np.array_equal(read_array(file), SCORES)


def test_a_truncated_file_is_refused_by_name(file):
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=file.name):
        read_array(file)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_names_choose(tmp_path, suffix):
    path = tmp_path / f"two{suffix}"
    write_arrays(path, {"a": SCORES, "b": SCORES + 1})
    assert np.array_equal(read_array(path, "b"), SCORES + 1)
    with pytest.raises(ValueError, match="holds a, b, and no 'scores'"):
        read_array(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_the_only_array_needs_no_name(tmp_path, suffix):
    path = tmp_path / f"one{suffix}"
    write_arrays(path, {"anything": SCORES})
    assert np.array_equal(read_array(path), SCORES)


def test_ours_is_safetensors_to_others(tmp_path):
    arrays = {
        "loads": np.arange(5),
        "shift": np.linspace(0, 1, 5),
        "none": np.zeros((0, 3), np.float32),
    }
    write_arrays(tmp_path / "x.safetensors", arrays)
    read = load_file(tmp_path / "x.safetensors")
    assert all(
        np.array_equal(read[name], array) and read[name].dtype == array.dtype
        for name, array in arrays.items()
    )


def test_bfloat16_is_widened_exactly(tmp_path):
    import torch
    from safetensors.torch import save_file as save_tensors

    scores = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_tensors({"scores": scores}, tmp_path / "x.safetensors")
    assert np.array_equal(read_array(tmp_path / "x.safetensors"), scores.float().numpy())


def test_a_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"x\.npy"):
        read_array(tmp_path / "x.npy")


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"not a \.npy, \.npz or \.safetensors"):
        read_array(tmp_path / "scores.pt")
    with pytest.raises(ValueError, match="are written as"):
        write_arrays(tmp_path / "x.pt", {})


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "x.safetensors"
    write_arrays(path, {"a": SCORES})
    with pytest.raises(KeyError):
        write_arrays(path, {"a": np.zeros(3, complex)})
    assert np.array_equal(read_array(path), SCORES)
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


def test_nobody_is_told_to_unpickle(tmp_path):
    garbage, objects = tmp_path / "garbage.npy", tmp_path / "objects.npy"
    garbage.write_bytes(b"no array at all")
    np.save(objects, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for path in (garbage, objects):
        with pytest.raises(ValueError, match="cannot be read") as found:
            read_array(path)
        assert "allow_pickle" not in str(found.value)
