"""Open a folder that save_pretrained wrote: config, tokenizer, routers, and the model at last.

Loading takes minutes, so whatever can be refused is refused before: a missing tokenizer, sequences
longer than the model takes, routers that one trace cannot hold. Weights are read from safetensors
alone, and no code of the folder is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from equipoise.attach.find.routers import find_routers
from equipoise.integrations.huggingface.checkpoint import weight_files
from equipoise.storage.optional import import_optional
from equipoise.training.scores import choose_layers

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
DEFAULT_LENGTH = 512
"""tokens in a sequence, where the model takes as many"""


def open_config(folder: Path) -> tuple[Any, Any]:
    """The model's config and tokenizer."""
    transformers = import_optional("transformers", extra="hf")
    weight_files(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(
            f"{folder} holds no tokenizer (none of {', '.join(TOKENIZER_FILES)}): copy the model's "
            "own into it"
        )
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except (KeyError, ImportError, TypeError) as error:
        raise ValueError(f"transformers cannot open {folder}: {error}") from error
    return config, tokenizer


def fit_sequence_length(config: Any, wanted: int | None) -> int:
    """The wanted length, if the model takes as many tokens; a default where none is wanted."""
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    if wanted is None:
        return min(DEFAULT_LENGTH, most or DEFAULT_LENGTH)
    if most and wanted > most:
        raise ValueError(
            f"sequences of {wanted} tokens are longer than the model's {most} "
            "(max_position_embeddings)"
        )
    return wanted


def unwanted_routers(config: Any, layers: Sequence[str]) -> list[str]:
    """The routers that are not to be kept. They are found and checked in a model without weights,
    before anything is loaded.
    """
    with torch.device("meta"):
        empty = _auto_class(config).from_config(config, trust_remote_code=False)
    found = {router.name: router for router in find_routers(empty).routers}
    kept = choose_layers(list(found), layers)
    specs = [found[name].spec for name in kept]
    if len({(spec.top_k, spec.groups, spec.score) for spec in specs}) > 1:
        raise ValueError(
            "a trace is of routers that choose in the same way, and these do not: "
            f"{', '.join(kept)}. Choose by --layer"
        )
    if specs[0].groups and (found[kept[0]].bias is None or specs[0].group_worth != "top2"):
        raise ValueError(
            f"{kept[0]} chooses its groups in a way that the arena cannot replay: its scores are "
            "not kept"
        )
    return [name for name in found if name not in kept]


def load_model(folder: Path, config: Any, device: str, dtype: str) -> Any:
    """The model in evaluation mode, on one device or spread over several ("auto")."""
    spread = {} if device == "cpu" else {"device_map": device}
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    try:
        return (
            _auto_class(config)
            .from_pretrained(folder, config=config, dtype=dtype, **safe, **spread)
            .eval()
        )
    except import_optional("safetensors", extra="hf").SafetensorError as error:
        raise ValueError(
            f"a .safetensors file of {folder} is damaged ({error}): fetch it again"
        ) from error


def _auto_class(config: Any) -> Any:
    transformers = import_optional("transformers", extra="hf")
    known = type(config) in transformers.AutoModelForCausalLM._model_mapping
    return transformers.AutoModelForCausalLM if known else transformers.AutoModel
