"""files: pictures with a palette as GIF, moving, or PNG.

A GIF's first picture is whole; each of the next holds only the rectangle that has changed, and what
has not changed in it is transparent, so a training of hundreds of columns is a small file. Nothing
in them depends on time or machine.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

TRANSPARENT = 255
"""the place in the palette that no picture may use"""
_MOST_CODES = 4096


def encode_gif(
    frames: Sequence[np.ndarray], palette: np.ndarray, hundredths: Sequence[int]
) -> bytes:
    """A GIF that repeats for ever.

    Args:
        frames: (height, width) uint8, places in the palette; all of one size.
        palette: (256, 3) uint8.
        hundredths: of a second, that each frame is shown.
    """
    height, width = frames[0].shape
    parts = [b"GIF89a", struct.pack("<HHBBB", width, height, 0xF7, 0, 0), palette.tobytes()]
    parts.append(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00")
    before: np.ndarray | None = None
    for frame, time in zip(frames, hundredths, strict=True):
        top, left, bottom, right = changed_box(before, frame)
        new = frame if before is None else np.where(before == frame, TRANSPARENT, frame)
        parts.append(struct.pack("<BBBBHBB", 0x21, 0xF9, 4, 0x05, time, TRANSPARENT, 0))
        parts.append(struct.pack("<BHHHHB", 0x2C, left, top, right - left, bottom - top, 0))
        parts.append(
            bytes([8]) + b"".join(_blocks(lzw_encode(new[top:bottom, left:right].astype(np.uint8))))
        )
        before = frame
    return b"".join([*parts, b"\x3b"])


def encode_png(pixels: np.ndarray, palette: np.ndarray) -> bytes:
    """A still picture, (height, width) uint8 in the palette."""
    height, width = pixels.shape
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    made = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def changed_box(before: np.ndarray | None, after: np.ndarray) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) of what differs; one pixel where nothing does."""
    if before is None:
        return 0, 0, *after.shape
    rows, columns = np.nonzero(before != after)
    if not len(rows):
        return 0, 0, 1, 1
    return int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1


def lzw_encode(pixels: np.ndarray) -> bytes:
    """GIF's variant of LZW, eight bits a pixel: codes grow from 9 to 12 bits, then begin anew."""
    clear, end = 256, 257
    # a string of pixels is the code of all but its last pixel, and that pixel
    known: dict[int, int] = {}
    first, *rest = pixels.tobytes()
    codes, bits, prefix = [(clear, 9)], 9, first
    for value in rest:
        longer = prefix << 8 | value
        code = known.get(longer)
        if code is not None:
            prefix = code
            continue
        codes.append((prefix, bits))
        added = known[longer] = end + 1 + len(known)
        if added == 1 << bits:
            bits += 1
        if added == _MOST_CODES - 1:
            codes.append((clear, bits))
            known, bits = {}, 9
        prefix = value
    codes.append((prefix, bits))
    # the reader adds one more entry before it reads the end
    if end + 1 + len(known) == 1 << bits and bits < 12:
        bits += 1
    return _pack_codes([*codes, (end, bits)])


def _pack_codes(codes: Iterable[tuple[int, int]]) -> bytes:
    """Least significant bit first."""
    made, held, count = bytearray(), 0, 0
    for code, bits in codes:
        held |= code << count
        count += bits
        while count >= 8:
            made.append(held & 255)
            held, count = held >> 8, count - 8
    return bytes([*made, held]) if count else bytes(made)


def _blocks(data: bytes) -> Iterable[bytes]:
    for start in range(0, len(data), 255):
        part = data[start : start + 255]
        yield bytes([len(part)]) + part
    yield b"\x00"
