"""Reading: texts as batches of a model's own tokens, a piece at a time, so that a text may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.training import texts

PIECE = 1 << 16  # letters encoded in one call


def batches(tokenizer: Any, data: str, rows: int, length: int) -> Iterator[Tensor]:
    """(rows, length) token numbers, one after another: texts follow each other in sequences without padding.

    What is left at the end and does not fill a batch is not used. A text too short for one batch raises.
    """
    held: list[int] = []
    first = True
    for ids in _encoded(tokenizer, data):
        held += ids
        while len(held) >= rows * length:
            yield torch.tensor(held[: rows * length]).view(rows, length)
            held, first = held[rows * length :], False
    if first:
        raise ValueError(
            f"{data} has {len(held)} tokens, and a batch takes {rows} sequences of {length} = {rows * length}: give more text, "
            "or a smaller --batch-size or --sequence-length"
        )


def _encoded(tokenizer: Any, data: str) -> Iterator[list[int]]:
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for document in _documents(data):
        for piece in document:
            yield list(tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])
        yield end


def _documents(data: str) -> Iterator[Iterable[str]]:
    """Every text of a file or folder, or of a corpus that `equipoise train` knows by name."""
    path = Path(data).expanduser()
    if path.is_dir():
        yield from map(_pieces, texts._text_files(path))
    elif path.exists():
        yield _pieces(path)
    else:
        for _, text in texts.find(data).documents():
            yield [text]


def _pieces(path: Path) -> Iterator[str]:
    """Whole lines, some tens of thousands of letters at a time."""
    try:
        with path.open(encoding="utf-8") as file:
            while lines := file.readlines(PIECE):
                yield "".join(lines)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}): convert it first") from None
