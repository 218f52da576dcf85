"""Arrays of an .npz file: into memory, or as a map of the file. Never unpickled.

np.savez stores arrays in a zip without compressing them, so an array lies in the file as it would
in memory, and only its place has to be found. A map reads nothing until it is used: the array may
be larger than memory.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

PARSER_ERRORS = (
    ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError, MemoryError,
    RuntimeError, RecursionError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
"""what numpy and zipfile raise when a file is cut off, damaged, encrypted or not theirs"""
_MOST_UNPACKED, _MOST_RATIO = 2**28, 100
"""bytes of a compressed array, and how many times more than in the file, that nobody has: scores
are noise, and hardly shrink"""
_LOCAL_HEADER = struct.Struct("<4s22x2H")
"""of a file in a zip: a signature, and the lengths of its name and of the extra field after it"""


def refuse_zip_bomb(path: Path) -> None:
    """Refuse an archive of a few bytes that would fill the memory, before it is unpacked."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            ratio = entry.file_size / max(1, entry.compress_size)
            if entry.file_size > _MOST_UNPACKED and ratio > _MOST_RATIO:
                raise ValueError(
                    f"{entry.filename} would unpack to {entry.file_size:,} bytes from "
                    f"{entry.compress_size:,}: such an array is empty of information. If it is "
                    "meant, write it by np.savez, uncompressed"
                )


def load_npz(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names, in memory. ValueError says what is wrong with the file."""
    try:
        refuse_zip_bomb(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except PARSER_ERRORS as error:
        raise ValueError(str(error) or type(error).__name__) from error


def map_npz(path: Path, name: str) -> NDArray[Any]:
    """The array of this name as a map of the file. What is written to it does not reach the file.

    ValueError says what is wrong with the file. Beyond its header the array is not looked at:
    unlike `load_npz` this does not see damage inside the numbers.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entry = archive.getinfo(f"{name}.npy")
        with path.open("rb") as file:
            return _map_entry(path, file, entry)
    except PARSER_ERRORS as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _map_entry(path: Path, file: IO[bytes], entry: zipfile.ZipInfo) -> NDArray[Any]:
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed and cannot be mapped: write it by np.savez")
    file.seek(entry.header_offset)
    signature, *lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise ValueError(f"{entry.filename} is not where the zip says")
    start = file.seek(sum(lengths), 1)
    shape, fortran, dtype = _read_array_header(file)
    # a map of objects would take the file's bytes for addresses
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds Python objects, which are not unpickled")
    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    if min(shape, default=0) < 0 or file.tell() + size != start + entry.file_size:
        raise ValueError(f"{entry.filename} has not as many bytes as {dtype} of shape {shape}")
    if size == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "c", file.tell(), shape, "F" if fortran else "C")


def _read_array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"it has version {version} of numpy's format: write it by np.savez")
