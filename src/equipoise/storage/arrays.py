"""Arrays from files and back: .npy, .npz and .safetensors. Read by memory map where the format
allows; never unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from equipoise.storage.atomic import replace_file
from equipoise.storage.npz import PARSER_ERRORS, refuse_zip_bomb

Array = np.ndarray[Any, Any]

_SAFETENSORS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "U8": np.dtype("u1"),
}  # fmt: skip


def read_array(path: str | Path, name: str | None = None, *, default: str = "scores") -> Array:
    """The array of a file: the one called `name`; without a name the one called `default`, or the
    only one there is. A .npy file has one array, without a name.
    """
    path = Path(path)
    if path.suffix == ".npy":
        if name is not None:
            raise ValueError(
                f"{path} holds one array, which has no name: leave the name {name!r} out, or give "
                "a .npz or .safetensors file"
            )
        return _reading(path, lambda: np.load(path, mmap_mode="r", allow_pickle=False))
    if path.suffix == ".npz":
        return _reading(path, lambda: _read_npz(path, name, default))
    if path.suffix == ".safetensors":
        return _reading(path, lambda: _read_safetensors(path, name, default))
    raise ValueError(f"{path}: not a .npy, .npz or .safetensors file")


def check_arrays_path(path: str | Path) -> Path:
    """The path, if `write_arrays` can write there; to be asked before long work."""
    path = Path(path)
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{path}: results are written as .npz or .safetensors")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file to write")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    return path


def write_arrays(path: str | Path, arrays: dict[str, Array]) -> None:
    """Write them all, or leave what was there."""
    path = check_arrays_path(path)
    with replace_file(path) as unfinished, unfinished.open("wb") as file:
        if path.suffix == ".npz":
            np.savez(file, allow_pickle=False, **arrays)
        else:
            _write_safetensors(file, arrays)


def _reading(path: Path, read: Callable[[], Array]) -> Array:
    """Whatever a damaged file makes a parser say, say which file it was."""
    try:
        return read()
    except PARSER_ERRORS as error:
        # numpy takes whatever it does not know for a pickle, and says how to load it all the same
        if "pickle" in str(error):
            raise ValueError(f"{path} cannot be read: it holds no array of numbers") from None
        raise ValueError(f"{path} cannot be read: {error}") from error


def _read_npz(path: Path, name: str | None, default: str) -> Array:
    refuse_zip_bomb(path)
    with np.load(path, allow_pickle=False) as archive:
        return archive[_chosen_name(list(archive.files), name, default, path)]


def _chosen_name(names: list[str], name: str | None, default: str, path: Path) -> str:
    if name is None:
        name = default if default in names or len(names) != 1 else names[0]
    if name not in names:
        raise ValueError(
            f"{path} holds {', '.join(sorted(names)) or 'nothing'}, and no {name!r}: choose one "
            "by its name"
        )
    return name


def _read_safetensors(path: Path, name: str | None, default: str) -> Array:
    """One tensor of a safetensors file: eight bytes of length, a JSON header, then the data."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > os.path.getsize(path):
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
    entry = header[
        _chosen_name([key for key in header if key != "__metadata__"], name, default, path)
    ]
    if entry["dtype"] not in _SAFETENSORS:
        raise ValueError(f"it holds {entry['dtype']}; wanted are {', '.join(_SAFETENSORS)}")
    start, end = entry["data_offsets"]
    kind, shape = _SAFETENSORS[entry["dtype"]], tuple(entry["shape"])
    if (
        start < 0
        or end - start != kind.itemsize * int(np.prod(shape))
        or 8 + length + end > os.path.getsize(path)
    ):
        raise ValueError("it is truncated, or its header is wrong")
    if end == start:
        return np.zeros(shape, kind)
    array = np.memmap(path, kind, "r", offset=8 + length + start, shape=shape)
    if entry["dtype"] == "BF16":
        # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _write_safetensors(file: IO[bytes], arrays: dict[str, Array]) -> None:
    codes = {kind: code for code, kind in _SAFETENSORS.items() if code != "BF16"}
    header: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        size = array.size * array.itemsize
        header[name] = {
            "dtype": codes[array.dtype],
            "shape": array.shape,
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    # so that the data are aligned
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).tobytes())
