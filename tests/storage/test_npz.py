"""Arrays of an .npz, loaded and mapped: the same, and damage is reported as a ValueError."""

import io
import zipfile

import numpy as np
import pytest

from equipoise.storage.arrays import read_array
from equipoise.storage.npz import load_npz, map_npz

ARRAYS = {
    "matrix": np.arange(12, dtype=np.float32).reshape(4, 3),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(4, 3)),
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(7),
    "text": np.array(["a", "bc"]),
}


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "x.npz", **ARRAYS)
    return tmp_path / "x.npz"


@pytest.mark.parametrize("name", ARRAYS)
def test_a_map_is_what_is_loaded(path, name):
    mapped, loaded = map_npz(path, name), load_npz(path, [name])[name]
    for array in (mapped, loaded):
        np.testing.assert_array_equal(array, ARRAYS[name])
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
    assert isinstance(mapped, np.memmap) or not mapped.size


def test_a_map_never_writes(path):
    before = path.read_bytes()
    map_npz(path, "matrix")[:] = -1
    assert path.read_bytes() == before


@pytest.mark.parametrize("read", [map_npz, lambda path, name: load_npz(path, [name])])
def test_what_cannot_be_read_is_a_value_error(path, read):
    for size in (0, 10, 300, -1):
        path.with_name("cut.npz").write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError):  # noqa: PT011 - numpy's or zipfile's own words
            read(path.with_name("cut.npz"), "matrix")
    with pytest.raises(ValueError, match="nothing"):
        read(path, "nothing")
    np.save(path.with_name("y.npy"), ARRAYS["matrix"])
    with pytest.raises(ValueError):  # noqa: PT011
        read(path.with_name("y.npy"), "matrix")
    with pytest.raises(FileNotFoundError):
        read(path.with_name("z.npz"), "matrix")


def test_objects_are_neither_unpickled_nor_mapped(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_npz(tmp_path / "x.npz", ["a"])
    with pytest.raises(ValueError, match="Python objects"):
        map_npz(tmp_path / "x.npz", "a")


def test_a_shape_beyond_the_file_is_refused(path):
    """The header of the array says more rows than there are."""
    changed = path.read_bytes().replace(b"'shape': (4, 3)", b"'shape': (9, 3)")
    path.write_bytes(changed)
    with pytest.raises(ValueError, match="not as many bytes"):
        map_npz(path, "matrix")


def test_compressed_files_are_not_mapped(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", **ARRAYS)
    with pytest.raises(ValueError, match="compressed"):
        map_npz(tmp_path / "x.npz", "matrix")
    np.testing.assert_array_equal(
        load_npz(tmp_path / "x.npz", ["matrix"])["matrix"], ARRAYS["matrix"]
    )


def with_bits_set(path):
    """The archive, said to be encrypted in both of its headers."""
    content = bytearray(path.read_bytes())
    content[content.find(b"PK\x03\x04") + 6] |= 1
    content[content.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)


@pytest.mark.parametrize("read", [lambda path: load_npz(path, ["scores"]), read_array])
def test_encrypted_and_exploding_archives_are_refused(tmp_path, read):
    path = tmp_path / "x.npz"
    np.savez(path, scores=np.zeros((2, 3)))
    with_bits_set(path)
    with pytest.raises(ValueError, match="encrypted"):
        read(path)
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (2**24, 8)}
    np.lib.format.write_array_header_1_0(header, shape)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("scores.npy", "w") as file,
    ):
        file.write(header.getvalue())
        for _ in range(32):
            file.write(bytes(2**24))
    assert path.stat().st_size < 2**22
    with pytest.raises(ValueError, match=r"would unpack to 536,871,\d+ bytes"):
        read(path)
