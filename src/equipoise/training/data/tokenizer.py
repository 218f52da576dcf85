"""Tokenizers: byte-level BPE, trained here or made elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from equipoise.storage.optional import import_optional

END_OF_TEXT = "<|endoftext|>"
MIN_VOCABULARY = 257
"""every byte, and the end of a text"""

# how people name the two files of a GPT-2 tokenizer
GPT2_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> Any:
    """A byte-level BPE: it can encode any text. The same documents give the same tokenizer."""
    if vocab_size < MIN_VOCABULARY:
        raise ValueError(
            f"a byte-level tokenizer has at least {MIN_VOCABULARY} entries: vocab_size = "
            f"{vocab_size} is too few"
        )
    tokenizers = import_optional("tokenizers", extra="train")
    coder = _byte_level(tokenizers, tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    coder.train_from_iterator(documents, trainer)
    return coder


def load_tokenizer(name: str) -> Any:
    """ "gpt2" from the Hugging Face hub, a tokenizer.json, or a folder with one or with GPT-2's two
    files.
    """
    tokenizers = import_optional("tokenizers", extra="train")
    path = Path(name).expanduser()
    coder = _from_path(tokenizers, path) if path.exists() else _from_hub(tokenizers, name)
    if coder.token_to_id(END_OF_TEXT) is None:
        raise ValueError(
            f"the tokenizer {name!r} has no entry {END_OF_TEXT}, which must stand between texts"
        )
    # a file may ask for either, and texts are to be read whole
    coder.no_truncation()
    coder.no_padding()
    return coder


def highest_token(coder: Any) -> int:
    """The highest number a tokenizer gives out. Numbers may have gaps, so that it is not the number
    of entries less one.
    """
    return max(coder.get_vocab(with_added_tokens=True).values())


def _from_path(tokenizers: Any, path: Path) -> Any:
    file = path if path.is_file() else path / "tokenizer.json"
    if file.exists():
        try:
            return tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"{file} is no tokenizer.json: {error}") from None
    for vocabulary, merges in GPT2_FILES:
        if (path / vocabulary).exists() and (path / merges).exists():
            bpe = tokenizers.models.BPE.from_file(str(path / vocabulary), str(path / merges))
            return _byte_level(tokenizers, bpe)
    wanted = " or ".join(" and ".join(pair) for pair in GPT2_FILES)
    raise ValueError(f"{path} holds no tokenizer: looked for tokenizer.json, or {wanted}")


def _from_hub(tokenizers: Any, name: str) -> Any:
    try:
        return tokenizers.Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(
            f"the tokenizer {name!r} could not be fetched ({error}). It is neither a file nor a "
            "folder here. On a machine with a network download its tokenizer.json (for gpt2: or "
            "vocab.json and merges.txt), and pass the folder that holds it with --tokenizer FOLDER"
        ) from None


def _byte_level(tokenizers: Any, model: Any) -> Any:
    coder = tokenizers.Tokenizer(model)
    coder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = tokenizers.decoders.ByteLevel()
    return coder
