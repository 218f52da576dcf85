"""export: a training of ours as the folder of a transformers model.

    equipoise.export("runs/a", "my-model")
    AutoModelForCausalLM.from_pretrained("my-model")      and TRL, engines, doctor, balance ...

The family is the one that computes exactly the same (twin_architecture.py); what no family computes
is refused. The shift stands where the family keeps its correction bias. The folder is loaded again
and its logits are compared with the training's before it appears under its name.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equipoise.balancing import settled as settled_shifts
from equipoise.integrations.huggingface.model_card import model_card
from equipoise.integrations.huggingface.same_logits import (
    LogitsComparison,
    compare_logits,
    tokens_to_compare,
)
from equipoise.integrations.huggingface.twin_architecture import (
    Settings,
    make_twin,
    twin_family,
    twin_weights,
)
from equipoise.storage.atomic import new_folder, write_json, write_text
from equipoise.storage.optional import import_optional
from equipoise.storage.output_path import output_path
from equipoise.training.data.tokenizer import END_OF_TEXT
from equipoise.training.open_run import OpenedRun, open_run, read_run_config

TOKENIZER_FILE = "tokenizer.json"
COMPARED_TEXT = 2000
"""tokens of the training's text, read by both tokenizers"""


@dataclass(frozen=True)
class ExportedModel:
    """What `export` wrote."""

    folder: Path
    model_type: str
    """transformers' name of the architecture"""
    step: int
    """of the checkpoint"""
    compared: LogitsComparison

    def __str__(self) -> str:
        return f"{self.folder}: {self.model_type}, step {self.step}; {self.compared}"


def export(folder: str | Path, out: str | Path, *, settled: bool = False) -> ExportedModel:
    """Write a training's newest checkpoint as a transformers model, tokenizer and model card
    included.

    Args:
        folder: of the training.
        out: of the model; must not hold anything.
        settled: take the settled shifts, without the noise of the last batches, and not those of
            the last step.

    Raises:
        ValueError: if no family of transformers computes what this model does, or if the folder,
            loaded again, gives other logits (more than 1e-5 away).

    Example:
        >>> equipoise.export("runs/a", "exported-model", settled=True)  # doctest: +SKIP
    """
    folder, out = Path(folder), output_path(out)
    _refuse_used_folder(out)
    # before anything is loaded
    twin_family(read_run_config(folder).model)
    run = open_run(folder, device="cpu")
    _refuse_sequences(run)
    chosen = settled_shifts(run.model) if settled else contextlib.nullcontext()
    with chosen, _quiet_bars(), new_folder(out) as unfinished:
        tokens = _write_tokenizer(run, unfinished)
        _write_model(run, unfinished, tokens)
        twin = _load_again(unfinished)
        _check_tokenizer(run, unfinished)
        _check_weights(run, twin)
        model = run.config.model
        compared = compare_logits(
            run.model,
            twin,
            tokens_to_compare(run.corpus.validation, model.vocab_size, model.sequence_length),
        )
        card = model_card(run, out.name, twin.config, compared, settled)
        write_text(unfinished / "README.md", card)
    return ExportedModel(out, twin.config.model_type, run.step, compared)


def _refuse_used_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already: choose another --out, or delete it first")


def _refuse_sequences(run: OpenedRun) -> None:
    balancers = [layer.router.balancer for layer in run.model.moe_layers.values()]
    if any(balancer.uses_sequences for balancer in balancers):
        raise ValueError(
            f"{run.config.balancer} lowers scores along each sequence, which no family of "
            "transformers does: the model would choose other experts there"
        )


def _write_model(run: OpenedRun, unfinished: Path, tokens: Settings) -> None:
    """config.json, generation_config.json and the weights as safetensors."""
    transformers = import_optional("transformers", extra="hf")
    twin = make_twin(run.model, tokens)
    end = tokens["eos_token_id"]
    twin.generation_config = transformers.GenerationConfig(
        bos_token_id=end, eos_token_id=end, pad_token_id=end
    )
    twin.save_pretrained(unfinished)
    for path in unfinished.glob("*.safetensors"):
        # the library's temporary file is its owner's alone; a model is to be handed on
        shutil.copymode(unfinished / "config.json", path)


def _write_tokenizer(run: OpenedRun, unfinished: Path) -> Settings:
    """The training's own tokenizer. Returns the special tokens of the model's config."""
    raw = _own_tokenizer(run)
    raw.save(str(unfinished / TOKENIZER_FILE))
    about = {
        # so named by transformers 4 and 5
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.config.model.sequence_length,
        "clean_up_tokenization_spaces": False,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
    }
    write_json(unfinished / "tokenizer_config.json", about)
    end = raw.token_to_id(END_OF_TEXT)
    # no pad_token_id: the embedding of such a token gets no gradient, and this one ends every text
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}


def _own_tokenizer(run: OpenedRun) -> Any:
    tokenizers = import_optional("tokenizers", extra="train")
    return tokenizers.Tokenizer.from_file(str(run.corpus.folder / TOKENIZER_FILE))


def _load_again(unfinished: Path) -> Any:
    """The model as anybody will load it."""
    transformers = import_optional("transformers", extra="hf")
    twin = transformers.AutoModelForCausalLM.from_pretrained(
        unfinished, use_safetensors=True, trust_remote_code=False, local_files_only=True
    )
    return twin.eval()


def _check_weights(run: OpenedRun, twin: Any) -> None:
    """To the last bit, since the tokens compared do not reach every row of the embedding."""
    written = twin.state_dict()
    for name, weight in twin_weights(run.model).items():
        if not torch.equal(written[name], weight):
            raise ValueError(
                f"{name} was not written as it was trained, and nothing was kept. Please report it "
                "with the run's config.yaml and the version of transformers"
            )


def _check_tokenizer(run: OpenedRun, unfinished: Path) -> None:
    """transformers may choose a tokenizer's class by the model's family: numbers must stay."""
    transformers = import_optional("transformers", extra="hf")
    loaded = transformers.AutoTokenizer.from_pretrained(
        unfinished, trust_remote_code=False, local_files_only=True
    )
    raw = _own_tokenizer(run)
    text = raw.decode(run.corpus.validation[:COMPARED_TEXT].tolist(), skip_special_tokens=False)
    for words in (text, f"two  spaces,\na line {END_OF_TEXT} déjà 漢字"):
        if loaded(words, verbose=False)["input_ids"] != raw.encode(words).ids:
            raise ValueError(
                "transformers reads the tokenizer that was written otherwise than the training "
                "did: nothing was kept. Please report it with the version of transformers"
            )


@contextlib.contextmanager
def _quiet_bars() -> Iterator[None]:
    """Without transformers' progress bars, which stand between a verb's lines."""
    import_optional("transformers", extra="hf")
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
