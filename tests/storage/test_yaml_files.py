"""YAML that would take all memory, all time or all of the stack is refused, by the file's name."""

import pytest

from equipoise.storage.yaml_files import parse_yaml, read_yaml
from equipoise.training.config import read_config


def bomb(levels=10, each=9):
    """Text whose last line stands for 9^10 values."""
    lines = ["a0: &a0 [x, x]"]
    for n in range(1, levels):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * each)}]")
    return "\n".join(lines)


def test_plain_settings_are_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("steps: 3\nmodel: {top_k: 2}\nseeds: [0, 1]\n")
    assert read_yaml(path) == {"steps": 3, "model": {"top_k": 2}, "seeds": [0, 1]}
    path.write_text("")
    assert read_yaml(path) is None


def test_a_few_aliases_are_read():
    text = "base: &base {steps: 3}\none: *base\ntwo: {<<: *base, seed: 1}\n"
    assert parse_yaml(text, "a.yaml")["two"] == {"steps": 3, "seed": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(), "aliases"),
        (bomb() + "\nbalancer_options: {x: *a9}", "aliases"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a: &a [*a]", "holds itself"),
        ("a: [1", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_others_are_refused_by_name(text, message, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.yaml.*{message}"):
        read_yaml(path)
    with pytest.raises(ValueError, match=r"bad\.yaml"):
        read_config(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"bad\.yaml is not YAML"):
        read_yaml(path)
