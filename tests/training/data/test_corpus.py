"""From texts to tokens on the disk."""

import errno
import json
import sys
import types

import numpy as np
import pytest

from equipoise.training.data import corpus as corpora
from equipoise.training.data import docstrings
from equipoise.training.data.corpus import open_corpus, prepare_corpus
from equipoise.training.data.texts import find_texts
from equipoise.training.data.tokenizer import load_tokenizer


def decoded(corpus, split):
    coder = load_tokenizer(str(corpus.folder))
    return coder.decode(getattr(corpus, split).tolist(), skip_special_tokens=True)


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return str(folder)


def test_tokens_say_the_text(texts):
    corpus = prepare_corpus(str(texts), vocab_size=512)
    both = decoded(corpus, "train") + decoded(corpus, "validation")
    for path in texts.iterdir():
        for line in path.read_text().splitlines():
            assert line in both
    assert len(corpus.train) > len(corpus.validation) > 0
    assert corpus.train.dtype == np.uint16
    assert corpus.vocab_size == 512


def test_a_text_may_speak_of_its_end(tmp_path):
    folder = write(tmp_path / "a", one="before <|endoftext|> after", two="x " * 99)
    corpus = prepare_corpus(folder, vocab_size=300)
    end = load_tokenizer(str(corpus.folder)).token_to_id("<|endoftext|>")
    assert (corpus.train == end).sum() == 1  # where it does end
    assert decoded(corpus, "train") == "before <|endoftext|> after"


def test_the_second_time_nothing_is_read(texts, monkeypatch):
    first = prepare_corpus(str(texts), vocab_size=512)
    monkeypatch.setattr(corpora, "_make_corpus", None)
    assert prepare_corpus(str(texts), vocab_size=512).digest == first.digest


def test_the_same_texts_give_the_same_tokens(texts, tmp_path, monkeypatch):
    first = prepare_corpus(str(texts), vocab_size=400)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    second = prepare_corpus(str(texts), vocab_size=400)
    assert second.folder != first.folder
    assert second.digest == first.digest


def test_another_text_is_another_corpus(tmp_path):
    folder = write(tmp_path / "a", one="first " * 50, two="second " * 50)
    before = prepare_corpus(folder, vocab_size=300)
    write(tmp_path / "a", one="changed " * 50)
    assert prepare_corpus(folder, vocab_size=300).digest != before.digest


def test_splits_by_name(tmp_path):
    folder = write(
        tmp_path / "a", train="to learn " * 9, valid="to check " * 9, test="to leave alone " * 9
    )
    corpus = prepare_corpus(folder, vocab_size=300)
    assert decoded(corpus, "train") == "to learn " * 9
    assert decoded(corpus, "validation") == "to check " * 9


def test_names_are_read_by_words_and_nothing_is_left_out_silently(tmp_path):
    folder = write(
        tmp_path / "a",
        constraints="to learn " * 9,
        validity="to learn too " * 9,
        zebra="to check " * 9,
    )
    assert (
        decoded(prepare_corpus(folder, vocab_size=300), "validation") == "to check " * 9
    )  # the last of a few files
    folder = write(
        tmp_path / "b", train="to learn " * 9, valid="to check " * 9, chapter="whose? " * 9
    )
    with pytest.raises(ValueError, match=r"chapter.txt and 0 more say neither: rename them"):
        prepare_corpus(folder, vocab_size=300)


def test_texts_are_read_whole_whatever_the_tokenizer_asks_for(texts, tmp_path):
    trained = prepare_corpus(str(texts), vocab_size=512)
    coder = load_tokenizer(str(trained.folder))
    coder.enable_truncation(16)
    coder.enable_padding(length=1000)
    coder.save(str(tmp_path / "tokenizer.json"))
    again = prepare_corpus(str(texts), vocab_size=512, tokenizer=str(tmp_path / "tokenizer.json"))
    assert np.array_equal(again.train, trained.train)


def test_one_file_is_cut_by_lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {n}\n" for n in range(100)))
    corpus = prepare_corpus(str(path), vocab_size=300)
    assert decoded(corpus, "validation") == "".join(f"line {n}\n" for n in (19, 39, 59, 79, 99))


def test_what_validates_is_from_all_over(tmp_path):
    """A file whose nature changes half-way, and a folder of a few files, each of its own nature."""
    lines = [f"{kind} {n}\n" for kind in ("one", "other") for n in range(500)]
    (tmp_path / "both.txt").write_text("".join(lines))
    folder = write(tmp_path / "few", one="".join(lines[:500]), other="".join(lines[500:]))
    for data in (str(tmp_path / "both.txt"), folder):
        documents = list(find_texts(data).documents())
        held_out = "".join(text for split, text in documents if split == "validation")
        assert 20 <= held_out.count("one") == held_out.count("other") <= 25
        assert sorted("".join(text for _, text in documents).splitlines()) == sorted(
            "".join(lines).splitlines()
        )


def test_gpt2s_files_are_read(tmp_path):
    alphabet = [chr(byte) for byte in range(33, 127)]
    entries = [*alphabet, "Ġ", "<|endoftext|>", "ab"]
    (tmp_path / "encoder.json").write_text(
        json.dumps({entry: n for n, entry in enumerate(entries)})
    )
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\n")
    coder = load_tokenizer(str(tmp_path))
    assert coder.encode("ab c").tokens == ["ab", "Ġ", "c"]


def test_damage_is_reported(tmp_path):
    corpus = prepare_corpus(write(tmp_path / "a", one="x " * 99, two="y " * 99), vocab_size=300)
    path = corpus.folder / "train.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"train.bin is damaged: delete the folder"):
        open_corpus(corpus.folder)
    whole = json.loads((corpus.folder / "corpus.json").read_text())
    for content in ("", "[]", "{}", json.dumps({**whole, "dtype": "O"})):
        (corpus.folder / "corpus.json").write_text(content)
        with pytest.raises(ValueError, match=r"corpus\.json is damaged.*delete the folder"):
            open_corpus(corpus.folder)


@pytest.mark.parametrize(("highest", "kind"), [(9_999, np.uint16), (99_999, np.uint32)])
def test_numbers_of_a_tokenizer_may_have_gaps(tmp_path, highest, kind):
    """They were an IndexError in training, and an OverflowError from 65,536 on."""
    folder = write(tmp_path / "a", one="v " * 99, two="w " * 99)
    plain = prepare_corpus(folder, vocab_size=300)
    content = json.loads((plain.folder / "tokenizer.json").read_text())
    [added] = content["added_tokens"]
    added["id"] = content["model"]["vocab"][added["content"]] = highest
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    corpus = prepare_corpus(folder, vocab_size=highest + 1, tokenizer=str(path))
    assert (corpus.vocab_size, int(corpus.train.max())) == (highest + 1, highest)
    assert corpus.train.dtype == kind
    with pytest.raises(ValueError, match=f"has {highest + 1} entries, the model's vocab_size"):
        prepare_corpus(folder, vocab_size=4096, tokenizer=str(path))


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = write(tmp_path / "a", one="x " * 99, two="y " * 99)
    monkeypatch.setattr(corpora, "_write_tokens", full)
    with pytest.raises(OSError, match=r"corpora: No space left on device.*EQUIPOISE_CACHE"):
        prepare_corpus(folder, vocab_size=301)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "docstring"}, "no data 'docstring': it is neither 'docstrings' nor"),
        ({"data": ".", "vocab_size": 256}, "at least 257 entries"),
        ({"data": ".", "tokenizer": "."}, "holds no tokenizer: looked for tokenizer.json"),
        ({"data": ".", "tokenizer": "one.txt"}, "one.txt is no tokenizer.json"),
        ({"data": "empty"}, "holds no text: looked for files ending in .txt"),
        ({"data": "binary.txt"}, "is not UTF-8 text"),
    ],
)
def test_mistakes_are_explained(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, one="some text\n" * 9, two="some more\n" * 9)
    (tmp_path / "empty").mkdir()
    if options["data"] == "binary.txt":
        (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=message):
        prepare_corpus(**{"vocab_size": 300, **options})


def test_vocabularies_must_fit(tmp_path, texts):
    trained = prepare_corpus(str(texts), vocab_size=512)
    folder = write(tmp_path / "a", one="x " * 99, two="y " * 99)
    with pytest.raises(ValueError, match="has 512 entries, the model's vocab_size is 300"):
        prepare_corpus(folder, vocab_size=300, tokenizer=str(trained.folder))


def test_docstrings_are_found(tmp_path, monkeypatch):
    long = (
        "A sentence that is long enough to be worth reading, since it has more than eighty "
        "characters."
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "left_out.py").write_text(f'"""{long} In a test."""')
    (tmp_path / "broken.py").write_text(f'"""{long} Broken."""\ndef (')
    (tmp_path / "good.py").write_text(
        f'"""{long}"""\nif True:\n    class A:\n        def f(self):\n'
        f'            r"""{long} In f."""\n'
        f'def g():\n    """Short."""\nadd_docstr(g, """{long} Attached.""")\n'
    )
    (tmp_path / "same.py").write_text(f'"""{long}"""')
    monkeypatch.setattr(docstrings, "LIBRARIES", ())
    monkeypatch.setattr(docstrings, "_library_folders", lambda _: [tmp_path])
    assert dict(docstrings.documents()) == {
        "python/good.py": [long, f"{long} In f.", f"{long} Attached."]
    }


def test_both_sides_hold_every_package(monkeypatch):
    files = {
        f"{package}/a.py": [f"{package} says {n}" for n in range(200)]
        for package in ("numpy", "torch")
    }
    monkeypatch.setattr(docstrings, "documents", files.items)
    sides = {"train": "", "validation": ""}
    for split, text in find_texts("docstrings").documents():
        sides[split] += text + "\n\n"
    learnt, held_out = (set(text.split("\n\n")) - {""} for text in sides.values())
    assert not learnt & held_out
    assert len(learnt | held_out) == 400
    for package in ("numpy", "torch"):
        assert 0.01 < sum(text.startswith(package) for text in held_out) / 200 < 0.12


def test_docstrings_follow_versions(monkeypatch):
    fingerprint = find_texts("docstrings").fingerprint["docstrings"]
    assert fingerprint["torch"].startswith("2.")
    monkeypatch.setattr(docstrings.platform, "python_version", lambda: "3.99")
    assert find_texts("docstrings").fingerprint["docstrings"] != fingerprint


@pytest.mark.slow
def test_the_whole_docstring_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    corpus = prepare_corpus("docstrings", vocab_size=4096)
    assert len(corpus.train) > 3_000_000
    assert 0.02 < len(corpus.validation) / len(corpus.train) < 0.1
    assert corpus.vocab_size == 4096


def fake_datasets(load):
    module = types.ModuleType("datasets")
    module.load_dataset = load
    module.exceptions = types.SimpleNamespace(DatasetsError=RuntimeError)
    return module


def test_wikitext_is_cut_into_articles(monkeypatch):
    rows = ["", " = One = \n", " text\n", " = = Part = = \n", " = Two = \n", " more\n"]
    answer = {"train": {"text": rows}, "validation": {"text": rows[1:3]}}
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(lambda *_: answer))
    documents = list(find_texts("wikitext-103").documents())
    assert [split for split, _ in documents] == ["train", "train", "validation"]
    assert documents[0][1] == " = One = \n text\n = = Part = = \n"


def test_without_a_network_the_remedy_is_reported(monkeypatch):
    def offline(*_):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(offline))
    with pytest.raises(ValueError, match=r"could not be fetched \(no route\)[\s\S]*--data FOLDER"):
        list(find_texts("wikitext-103").documents())
