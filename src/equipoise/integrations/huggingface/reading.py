"""Reading: texts as batches of a model's own tokens, a piece at a time, so that a text may be
larger than memory.

Pieces are read in an order of which every first part is spread over the whole text: few batches are
not those of the first files alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.training.data import texts

PIECE_BYTES = 1 << 16
"""encoded in one call"""


def read_batches(tokenizer: Any, data: str, rows: int, length: int) -> Iterator[Tensor]:
    """(rows, length) token numbers, one after another: texts follow each other in sequences without
    padding.

    What is left at the end and does not fill a batch is not used. A text too short for one batch
    raises.
    """
    held: list[int] = []
    first = True
    for ids in _encode_pieces(tokenizer, data):
        held += ids
        while len(held) >= rows * length:
            yield torch.tensor(held[: rows * length]).view(rows, length)
            held, first = held[rows * length :], False
    if first:
        raise ValueError(
            f"{data} has {len(held)} tokens, and a batch takes {rows} sequences of {length} = "
            f"{rows * length}: give more text, or a smaller --batch-size or --sequence-length"
        )


def check_vocabulary(ids: Tensor, model: Any) -> None:
    """Refuse tokens that the model does not know."""
    vocabulary = model.get_input_embeddings().num_embeddings
    if int(ids.max()) >= vocabulary:
        raise ValueError(
            f"the tokenizer gives token {int(ids.max())}, and the model knows {vocabulary}: "
            "it may be the tokenizer of another model"
        )


def _encode_pieces(tokenizer: Any, data: str) -> Iterator[list[int]]:
    """The tokens of every piece, with an end-of-text token after it where the tokenizer has one."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    pieces = _list_pieces(data)
    for number in _spread_order(len(pieces)):
        yield [
            *tokenizer(pieces[number].read_text(), add_special_tokens=False, verbose=False)[
                "input_ids"
            ],
            *end,
        ]


def _spread_order(count: int) -> list[int]:
    """0 to count - 1 in the order of the fractions of n x golden ratio: those below any bound lie
    at nearly even distances (the three-gap theorem), so every first part is spread over the whole.
    """
    golden = (5**0.5 - 1) / 2
    return sorted(range(count), key=lambda n: n * golden % 1)


class _TextPiece(NamedTuple):
    """Whole lines of a file, from one byte to another; or a text itself."""

    source: Path | str
    start: int = 0
    stop: int = 0

    def read_text(self) -> str:
        """The text of this piece, with \\n as its only line ending."""
        if isinstance(self.source, str):
            return self.source
        with self.source.open("rb") as file:
            file.seek(self.start)
            found = file.read(self.stop - self.start)
        try:
            return found.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.source} is not UTF-8 text ({error.reason}): convert it first"
            ) from None


def _list_pieces(data: str) -> list[_TextPiece]:
    """Every text of a file or folder, or of a corpus that `equipoise train` knows by name."""
    path = Path(data).expanduser()
    if path.is_dir():
        return [piece for file in texts._text_files(path) for piece in _pieces_of_file(file)]
    if path.exists():
        return _pieces_of_file(path)
    return [_TextPiece(text) for _, text in texts.find_texts(data).documents()]


def _pieces_of_file(path: Path) -> list[_TextPiece]:
    """Whole lines, some tens of thousands of bytes at a time. Only their positions are kept."""
    found = []
    with path.open("rb") as file:
        start = 0
        while file.readlines(PIECE_BYTES):
            found.append(_TextPiece(path, start, start := file.tell()))
    return found
