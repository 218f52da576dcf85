"""Where texts come from: docstrings, local files, or WikiText-103.

Each source is a `Texts`: documents for training and for validation, and a fingerprint. The same
fingerprint means the same documents, so that a prepared corpus can be found again in the cache
without reading a text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.storage.optional import import_optional
from equipoise.training.data import docstrings

VALIDATION_PERCENT = 5
SPLITS = ("train", "validation")


class Texts(NamedTuple):
    """A source of documents."""

    name: str
    fingerprint: dict[str, Any]
    """what the documents follow from: versions of packages, or digests of files"""
    documents: Callable[[], Iterable[tuple[str, str]]]
    """(split, text) of every document, always in the same order"""


def find_texts(data: str) -> Texts:
    """The texts called "docstrings" or "wikitext-103", or those of a local file or folder."""
    if data == "docstrings":
        return Texts("docstrings", {"docstrings": docstrings.library_versions()}, _docstring_texts)
    if data == "wikitext-103":
        return Texts("wikitext-103", {"dataset": WIKITEXT_DATASET}, _wikitext_articles)
    path = Path(data).expanduser()
    if not path.exists():
        raise ValueError(
            f"no data {data!r}: it is neither 'docstrings' nor 'wikitext-103', and no file or "
            "folder has that name"
        )
    return _local_texts(path)


# docstrings


def _docstring_texts() -> Iterator[tuple[str, str]]:
    """Split by docstring, so that both sides hold every package and every kind of file. No text is
    on both sides, since equal docstrings were kept once. (Split by file, validation was a handful
    of files unlike the rest.)
    """
    for _, texts in docstrings.documents():
        for split in SPLITS:
            if some := [text for text in texts if _split_of(text) == split]:
                yield split, "\n\n".join(some)


def _split_of(text: str) -> str:
    """By the text alone, so that it stays on its side whatever else is there."""
    percent = (
        int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest()[:4], "big") % 100
    )
    return "validation" if percent < VALIDATION_PERCENT else "train"


# local files

TEXT_FILES = (".txt", ".md", ".rst", ".tokens", ".raw", ".text")


def _local_texts(path: Path) -> Texts:
    files = [path] if path.is_file() else _text_files(path)
    fingerprint = {
        file.name if path.is_file() else str(file.relative_to(path)): _file_digest(file)
        for file in files
    }
    return Texts(
        path.name,
        {"files": fingerprint},
        lambda: _split_one_file(path) if path.is_file() else _split_folder(path, files),
    )


def _text_files(folder: Path) -> list[Path]:
    files = sorted(
        file for file in folder.rglob("*") if file.suffix.lower() in TEXT_FILES and file.is_file()
    )
    if not files:
        raise ValueError(
            f"{folder} holds no text: looked for files ending in {', '.join(TEXT_FILES)}"
        )
    return files


VALIDATION_EVERY = 100 // VALIDATION_PERCENT
"""one in so many is for validation"""
VALIDATION_PIECES = 10
"""of a file that are for validation, if it has enough lines"""


def _split_one_file(path: Path) -> Iterator[tuple[str, str]]:
    lines = _read_lines(path)
    if len(lines) < 2:
        raise ValueError(f"{path} has {len(lines)} lines: too few to keep some for validation")
    if len(lines) >= VALIDATION_EVERY:
        yield from _cut_file(lines)
        return
    yield "train", "".join(lines[:-1])
    yield "validation", lines[-1]


def _cut_file(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Pieces from all over a file are for validation: its end may be unlike the rest."""
    size = max(1, len(lines) // (VALIDATION_EVERY * VALIDATION_PIECES))
    for start in range(0, len(lines), VALIDATION_EVERY * size):
        learnt = start + (VALIDATION_EVERY - 1) * size
        yield "train", "".join(lines[start:learnt])
        if held_out := lines[learnt : start + VALIDATION_EVERY * size]:
            yield "validation", "".join(held_out)


def _split_folder(folder: Path, files: list[Path]) -> Iterator[tuple[str, str]]:
    """As the files' names say (train, valid, test; test is not read). Otherwise every twentieth
    file is for validation, or pieces of each where there are fewer.
    """
    named = {file: _split_by_name(file.relative_to(folder)) for file in files}
    if {"train", "validation"} <= set(named.values()):
        if unnamed := [file.relative_to(folder) for file, split in named.items() if split is None]:
            raise ValueError(
                f"{folder}: some names say train and some valid, but {unnamed[0]} and "
                f"{len(unnamed) - 1} more say neither: rename them, or put them elsewhere"
            )
        for file, split in named.items():
            if split in SPLITS:
                yield split, _read_text(file)
        return
    if len(files) < 2:
        yield from _split_one_file(files[0])
        return
    if len(files) < VALIDATION_EVERY:
        yield from _split_few_files(files)
        return
    for n, file in enumerate(files):
        yield (
            "validation" if n % VALIDATION_EVERY == VALIDATION_EVERY - 1 else "train",
            _read_text(file),
        )


def _split_few_files(files: list[Path]) -> Iterator[tuple[str, str]]:
    """A whole file held out may be unlike the others, so pieces of each are; if none has enough
    lines, the last file is held out.
    """
    long = {file for file in files if len(_read_lines(file)) >= VALIDATION_EVERY} or {files[-1]}
    for file in files:
        lines = _read_lines(file)
        if len(lines) >= VALIDATION_EVERY:
            yield from _cut_file(lines)
        else:
            yield "validation" if file in long else "train", "".join(lines)


SPLIT_NAMES = {
    "train": {"train", "training"},
    "validation": {"valid", "validation", "val", "dev"},
    "test": {"test", "testing"},
}


def _split_by_name(path: Path) -> str | None:
    """By whole words: constraints.txt is not for training."""
    words = set(re.split("[^a-z]+", str(path).lower()))
    return next((split for split, names in SPLIT_NAMES.items() if words & names), None)


def _read_lines(path: Path) -> list[str]:
    return _read_text(path).splitlines(keepends=True)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {error.start}): convert it first"
        ) from None


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# WikiText-103

WIKITEXT_DATASET = ("Salesforce/wikitext", "wikitext-103-raw-v1")


def _wikitext_articles() -> Iterator[tuple[str, str]]:
    """The paper's data. Lines are joined to articles; each begins with a line ` = Title = `."""
    datasets = import_optional("datasets", extra="wikitext")
    try:
        rows = datasets.load_dataset(*WIKITEXT_DATASET)
    except (OSError, ConnectionError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(
            f"WikiText-103 could not be fetched ({error}). On a machine with a network, this "
            "writes it into two files:\n"
            f"  import datasets; rows = datasets.load_dataset{WIKITEXT_DATASET!r}\n"
            "  for split in ('train', 'validation'): open(split + '.txt', "
            "'w').writelines(rows[split]['text'])\n"
            "Put them into a folder here and pass it with --data FOLDER; and with --tokenizer "
            "FOLDER one that holds GPT-2's vocab.json and merges.txt, from the model gpt2 of the "
            "same hub"
        ) from error
    for split in SPLITS:
        yield from ((split, article) for article in _articles(rows[split]["text"]))


def _articles(lines: Iterable[str]) -> Iterator[str]:
    article: list[str] = []
    for line in lines:
        if any(article) and line.startswith(" = ") and not line.startswith(" = = "):
            yield "".join(article)
            article = []
        article.append(line)
    yield "".join(article)
