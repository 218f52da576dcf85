"""Corpus: texts as numbers, in files that are mapped into memory and not read.

    corpus = prepare_corpus("docstrings", vocab_size=4096)    up to a minute the first time
    corpus.train[:10]                                         a numpy array on the disk

Prepared corpora are in the cache (storage/cache.py), in a folder named by what they follow from:

    train.bin, validation.bin    token numbers, little-endian uint16 or uint32
    tokenizer.json               of the library `tokenizers`
    corpus.json                  what it is made of, how many tokens, and a digest of them
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.storage.atomic import new_folder, write_json
from equipoise.storage.cache import cache_folder
from equipoise.storage.json_files import read_json_object
from equipoise.training.data import texts
from equipoise.training.data.tokenizer import (
    END_OF_TEXT,
    highest_token,
    load_tokenizer,
    train_tokenizer,
)

CORPUS_FORMAT = 3
"""Raise it when the same texts would give other tokens than before."""
CORPUS_DTYPES = ("<u2", "<u4")
CACHE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
"""what a disk says that is full, or that may not be written to"""
ENCODED_TOGETHER = 64
"""documents in one call, which shares them out over all threads"""


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and tokens to validate with."""

    name: str
    folder: Path
    digest: str
    """of all tokens: the same digest is the same corpus"""
    vocab_size: int
    """one more than its tokenizer's highest number; a model may have more"""
    train: np.ndarray
    validation: np.ndarray


def prepare_corpus(
    data: str,
    *,
    vocab_size: int,
    tokenizer: str = "auto",
    report: Callable[[str], None] = lambda _: None,
) -> Corpus:
    """Find a corpus in the cache, or make it.

    Args:
        data: "docstrings", "wikitext-103", or a text file or folder of them.
        vocab_size: how many entries the model has. A tokenizer trained here gets as many; one
            made elsewhere may have fewer.
        tokenizer: "bpe" (trained on the training texts), "gpt2", or a file or folder; "auto" is
            gpt2 for wikitext-103 and bpe otherwise.
        report: called with what is being done, where that takes long.
    """
    source = texts.find_texts(data)
    if tokenizer == "auto":
        tokenizer = "gpt2" if data == "wikitext-103" else "bpe"
    recipe = {
        "format": CORPUS_FORMAT,
        "texts": source.fingerprint,
        "tokenizer": {"bpe": vocab_size}
        if tokenizer == "bpe"
        else _tokenizer_fingerprint(tokenizer),
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder() / "corpora" / f"{source.name}-{key}"
    if not (folder / "corpus.json").exists():
        try:
            _make_corpus(folder, source, recipe, tokenizer, vocab_size, report)
        except OSError as error:
            if error.errno not in CACHE_ERRORS:
                raise
            raise OSError(
                f"the corpus could not be written to {folder.parent}: {error.strerror}. Make room, "
                "or choose another folder by the variable EQUIPOISE_CACHE"
            ) from error
    corpus = open_corpus(folder)
    if corpus.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer {tokenizer!r} has {corpus.vocab_size} entries, the model's "
            f"vocab_size is {vocab_size}: raise it, or take another tokenizer"
        )
    return corpus


def open_corpus(folder: Path) -> Corpus:
    """A corpus that was prepared before; it is checked to be whole."""
    keys = ("name", "digest", "vocab_size", "dtype", "tokens")
    remedy = f"delete the folder {folder}, and it will be made again"
    about = read_json_object(folder / "corpus.json", keys=keys, remedy=remedy)
    if about["dtype"] not in CORPUS_DTYPES or set(about["tokens"]) != set(texts.SPLITS):
        raise ValueError(f"{folder / 'corpus.json'} is damaged: {remedy}")
    dtype = np.dtype(about["dtype"])
    arrays = {}
    for split, tokens in about["tokens"].items():
        path = folder / f"{split}.bin"
        if not path.exists() or path.stat().st_size != tokens * dtype.itemsize:
            raise ValueError(f"{path} is damaged: {remedy}")
        arrays[split] = np.memmap(path, dtype, mode="r") if tokens else np.zeros(0, dtype)
    return Corpus(
        about["name"],
        folder,
        about["digest"],
        about["vocab_size"],
        arrays["train"],
        arrays["validation"],
    )


def _make_corpus(
    folder: Path,
    source: texts.Texts,
    recipe: Mapping[str, object],
    tokenizer: str,
    vocab_size: int,
    report: Callable[[str], None],
) -> None:
    report(f"reading {source.name}")
    documents: dict[str, list[str]] = {split: [] for split in texts.SPLITS}
    for split, text in source.documents():
        documents[split].append(text)
    with new_folder(folder) as unfinished:
        if tokenizer == "bpe":
            report(f"training a tokenizer of {vocab_size:,} entries")
            coder = train_tokenizer(documents["train"], vocab_size)
        else:
            coder = load_tokenizer(tokenizer)
        # by ourselves: the library raises bare Exceptions where a disk is full
        (unfinished / "tokenizer.json").write_text(coder.to_str(pretty=True), encoding="utf-8")
        vocabulary = highest_token(coder) + 1
        dtype = np.dtype(CORPUS_DTYPES[vocabulary > 2**16])
        tokens, digest = {}, hashlib.sha256()
        for split in texts.SPLITS:
            report(f"turning {source.name} ({split}) into tokens")
            tokens[split] = _write_tokens(
                unfinished / f"{split}.bin", coder, documents[split], dtype
            )
            digest.update((unfinished / f"{split}.bin").read_bytes())
        about = {
            "name": source.name,
            "digest": digest.hexdigest(),
            "vocab_size": vocabulary,
            "dtype": dtype.str,
            "tokens": tokens,
            "characters": {split: sum(map(len, documents[split])) for split in texts.SPLITS},
            "made from": recipe,
        }
        write_json(unfinished / "corpus.json", about)


def _write_tokens(path: Path, coder: Any, documents: list[str], dtype: np.dtype) -> int:
    """Every document, each followed by the token that ends a text."""
    end, written = coder.token_to_id(END_OF_TEXT), 0
    # a text that quotes the end token does not end there
    coder.encode_special_tokens = True
    with path.open("wb") as file:
        for start in range(0, len(documents), ENCODED_TOGETHER):
            for encoding in coder.encode_batch_fast(
                documents[start : start + ENCODED_TOGETHER], add_special_tokens=False
            ):
                ids = np.array([*encoding.ids, end], dtype)
                file.write(ids.tobytes())
                written += len(ids)
    return written


def _tokenizer_fingerprint(tokenizer: str) -> dict[str, str]:
    path = Path(tokenizer).expanduser()
    if not path.exists():
        return {"name": tokenizer}
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
