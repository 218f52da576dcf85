"""Recording Hugging Face models: what a trace holds is what the model itself chose, to the last
token.
"""

import shutil
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch

import equipoise
from equipoise.arena.cells import Cell, run_cells
from equipoise.arena.reference import reference_for
from equipoise.arena.streams.recorded import Recorded
from equipoise.cli import main
from equipoise.integrations.huggingface import reading
from equipoise.integrations.huggingface.loading import unwanted_routers
from equipoise.integrations.huggingface.recording import record_model
from equipoise.trace import Trace, TraceError
from tests.attach.families import WITH_BIAS, WITHOUT_BIAS

transformers = pytest.importorskip("transformers")
FAMILIES = {family.name: family for family in WITH_BIAS + WITHOUT_BIAS}
ROWS, LENGTH = 4, 32


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Texts that every Python brings along, a tokenizer trained on them, and a maker of models that
    fit it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("models")
    (folder / "manual.txt").write_text("\n".join(topics.values())[:60_000])
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer, learnt.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<end>"], initial_alphabet=alphabet
    )
    learnt.train([str(folder / "manual.txt")], trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=learnt, eos_token="<end>"
    ).save_pretrained(folder / "tokenizer")
    return folder


@pytest.fixture(scope="module")
def saved(place):
    made = {}

    def save(name):
        if name not in made:
            family = FAMILIES[name]
            torch.manual_seed(0)
            config = family.config()
            config.vocab_size = 400
            model = transformers.AutoModelForCausalLM.from_config(config)
            for key, buffer in model.named_buffers():
                if key.endswith("e_score_correction_bias"):
                    buffer.normal_(0.0, 0.05)
            model.save_pretrained(place / name)
            shutil.copytree(place / "tokenizer", place / name, dirs_exist_ok=True)
            made[name] = place / name
        return made[name]

    return save


def record(model, place, out, **options):
    options = {"batches": 3, "batch_size": ROWS, "sequence_length": LENGTH, **options}
    return record_model(model, out, data=str(place / "manual.txt"), **options)


def witnessed(folder, place, batches=3):
    """Count by hand: the indices a plain model calls its experts with, on the same tokens cut by
    hand.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer((place / "manual.txt").read_text(), add_special_tokens=False)["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    blocks = {name: block for name, block in model.named_modules() if hasattr(block, "experts")}
    chosen = {name: [] for name in blocks}
    for name, block in blocks.items():
        block.experts.register_forward_pre_hook(
            lambda _, args, name=name: chosen[name].append(args[1].flatten())
        )
    for number in range(batches):
        piece = ids[number * ROWS * LENGTH :][: ROWS * LENGTH]
        with torch.no_grad():
            model(torch.tensor(piece).view(ROWS, LENGTH))
    return {
        name: [torch.bincount(each, minlength=8) for each in counted]
        for name, counted in chosen.items()
    }, model


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_moe", "mixtral"])
def test_loads_are_the_models_own(saved, place, tmp_path, name):
    trace = record(saved(name), place, tmp_path / "trace")
    counted, model = witnessed(saved(name), place)
    assert list(trace.layers) == list(counted)
    groups = trace.about["groups"]
    assert groups == ([4, 2] if name == "deepseek_v3" else None)
    assert trace.sequence_length == LENGTH
    for layer, loads in counted.items():
        for step in trace.steps(layer):
            record_ = trace.record(layer, step)
            assert record_.loads.tolist() == loads[step].tolist()
            scores = torch.from_numpy(record_.scores)
            routing = equipoise.route(
                scores, 2, choose_by=scores + torch.from_numpy(record_.shift), groups=groups
            )
            assert routing.loads.tolist() == record_.loads.tolist()
            bias = getattr(
                model.get_submodule(layer).gate, "e_score_correction_bias", torch.zeros(8)
            )
            np.testing.assert_array_equal(record_.shift, bias.numpy())
            np.testing.assert_array_equal(record_.shift_after, record_.shift)


def test_every_verb_reads_the_trace(saved, place, tmp_path, capsys):
    out = str(tmp_path / "trace")
    words = [
        "record",
        str(saved("mixtral")),
        "--data",
        str(place / "manual.txt"),
        "--out",
        out,
        "--steps",
        "24",
    ]
    assert main([*words, "--batch-size", "4", "--sequence-length", "16", "--layer", "*.1.mlp"]) == 0
    assert f"{out}: 24 batches of 1 layer. Next: equipoise arena {out}" in capsys.readouterr().out
    assert Trace.open(out).layers == ("model.layers.1.mlp",)
    assert main(["arena", out, "--balancers", "none", "quantile", "--workers", "1"]) == 0
    assert main(["tune", out, "--balancers", "deepseek", "quantile", "--workers", "1"]) == 0
    assert main(["solve", f"{out}/000/000000003.whole.npz", "--top-k", "2"]) == 0
    assert main(["verify", out]) == 0


def test_logits_have_an_affinity(saved, place, tmp_path):
    """gpt_oss ranks bare logits, most of them negative: measured from the least, the optimum's own
    is 1.
    """
    record(saved("gpt_oss"), place, tmp_path / "trace", batches=6)
    stream = Recorded.of(tmp_path / "trace")
    assert float(stream.batch(0).scores.min()) < 0
    (exact,) = run_cells([Cell(stream, "base", None, 1)], reference_for(stream))
    assert exact.affinity_kept == pytest.approx(1, abs=1e-3)


def test_the_text_may_end_early(saved, place, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("a short text, " * 60)
    words = [
        "record",
        str(saved("mixtral")),
        "--data",
        str(tmp_path / "short.txt"),
        "--out",
        str(tmp_path / "trace"),
    ]
    assert main([*words, "--batch-size", "2", "--sequence-length", "32"]) == 0
    assert "(of 30: the text ended)" in capsys.readouterr().out


def test_a_text_is_read_in_pieces(place, monkeypatch):
    """Nothing is lost or doubled where one piece ends and the next begins."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "tokenizer")
    monkeypatch.setattr(reading, "PIECE_BYTES", 500)
    text = (place / "manual.txt").read_text()
    pieces = reading._list_pieces(str(place / "manual.txt"))
    assert len(pieces) > 10
    assert "".join(piece.read_text() for piece in pieces) == text
    ids = torch.cat(
        [
            each.flatten()
            for each in reading.read_batches(tokenizer, str(place / "manual.txt"), 4, 32)
        ]
    )
    assert len(tokenizer.decode(ids)) > 0.95 * len(text)


def test_few_batches_are_of_the_whole_text(place, tmp_path, monkeypatch):
    """A text whose nature changes half-way, and a folder of two natures."""
    monkeypatch.setattr(reading, "PIECE_BYTES", 200)
    tokenizer = Letters()
    (tmp_path / "both.txt").write_text("aaaaaaaaa\n" * 500 + "bbbbbbbbb\n" * 500)
    (tmp_path / "folder").mkdir()
    for letter in "ab":
        (tmp_path / "folder" / f"{letter}.txt").write_text(f"{letter * 9}\n" * 500)
    for data in ("both.txt", "folder"):
        ids = torch.cat([next(reading.read_batches(tokenizer, str(tmp_path / data), 8, 100))])
        assert int((ids == ord("a")).sum()) == pytest.approx(int((ids == ord("b")).sum()), rel=0.3)
        every = torch.cat(list(reading.read_batches(tokenizer, str(tmp_path / data), 10, 100)))
        assert every.numel() == 10_000
        assert (every == ord("a")).sum() == 4500


class Letters:
    eos_token_id = None

    def __call__(self, text, **_):
        return {"input_ids": [ord(letter) for letter in text]}


def test_nothing_is_left_on_the_model(saved, place, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "equipoise.integrations.huggingface.recording.load_model",
        lambda folder, *_: (
            kept.append(transformers.AutoModelForCausalLM.from_pretrained(folder).eval()) or kept[0]
        ),
    )
    record(saved("deepseek_v3"), place, tmp_path / "trace", batches=1)
    assert not any(
        module._forward_pre_hooks or module._forward_hooks for module in kept[0].modules()
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "nor of a Hugging Face model"),
        (
            lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
            "holds no tokenizer",
        ),
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
            "are not opened",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"not one"),
            "not a safetensors file",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
    ],
)
def test_bad_folders_are_reported(saved, place, tmp_path, capsys, spoil, message):
    bad = shutil.copytree(saved("mixtral"), tmp_path / "bad")
    spoil(bad)
    assert (
        main(
            [
                "record",
                str(bad),
                "--data",
                str(place / "manual.txt"),
                "--out",
                str(tmp_path / "trace"),
            ]
        )
        == 2
    )
    assert message in capsys.readouterr().err
    assert not (tmp_path / "trace").exists()


def test_dense_models_are_reported(place, tmp_path):
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 400,
    }
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(
        tmp_path / "dense"
    )
    shutil.copytree(place / "tokenizer", tmp_path / "dense", dirs_exist_ok=True)
    with pytest.raises(ValueError, match="LlamaForCausalLM has no router"):
        record(tmp_path / "dense", place, tmp_path / "trace")


def test_mistakes_are_reported(saved, place, tmp_path):
    model = saved("mixtral")
    (tmp_path / "tiny.txt").write_text("too short")
    with pytest.raises(ValueError, match="give more text"):
        record_model(model, tmp_path / "trace", data=str(tmp_path / "tiny.txt"))
    with pytest.raises(ValueError, match=r"no layer 'layers.9': there are model.layers.0.mlp"):
        record(model, place, tmp_path / "trace", layers=["layers.9"])
    with pytest.raises(ValueError, match="longer than the model's 128"):
        record(model, place, tmp_path / "trace", sequence_length=999)
    grouped = FAMILIES["mistral4"].config()
    with pytest.raises(ValueError, match="in a way that the arena cannot replay"):
        unwanted_routers(grouped, [])
    with pytest.raises(ValueError, match="cannot record 0 batches"):
        record(model, place, tmp_path / "trace", batches=0)
    assert not (tmp_path / "trace").exists()
    record(model, place, tmp_path / "trace", batches=1)
    with pytest.raises(TraceError, match="already holds a trace"):
        record(model, place, tmp_path / "trace")


def test_options_of_the_other_kind_are_reported(saved, tmp_path, capsys):
    assert main(["record", str(saved("mixtral")), "--out", str(tmp_path / "x")]) == 2
    assert "name some by --data" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text("steps: 1\n")
    assert (
        main(["record", str(tmp_path), "--out", str(tmp_path / "x"), "--sequence-length", "9"]) == 2
    )
    assert "--sequence-length is for a Hugging Face model" in capsys.readouterr().err
