"""Recording: run a model that save_pretrained wrote over text, and keep every router's scores in a
Trace.

    record_model("my-model", "scores/a", data="texts/", batches=30)
    equipoise arena scores/a

The model stays as it is: nothing learns, no shift moves. What is kept is what its routers saw: the
unshifted scores of every token, the model's own correction bias as the shift, and the loads its own
choice gave. Weights are read from safetensors alone, and no code of the folder is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.attach.balance import Balancing
from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.find.probe import RoutingSpec
from equipoise.attach.find.routers import find_routers
from equipoise.integrations.huggingface.checkpoint import weight_files
from equipoise.integrations.huggingface.reading import read_batches
from equipoise.storage.optional import import_optional
from equipoise.trace import Trace, TraceAbout, TraceError, TraceWriter, is_trace
from equipoise.training.scores import choose_layers

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
DEFAULT_LENGTH = 512  # of sequences, where the model takes as many


@torch.no_grad()
def record_model(
    folder: str | Path,
    out: str | Path,
    *,
    data: str,
    batches: int = 30,
    batch_size: int = 8,
    sequence_length: int | None = None,
    layers: Sequence[str] = (),
    device: str = "cpu",
    dtype: str = "auto",
    on_batch: Callable[[], None] = lambda: None,
) -> Trace:
    """Keep the scores of a model's routers over text.

    Args:
        folder: with config.json, a tokenizer and .safetensors files.
        out: the folder of the trace; must not hold one.
        data: a text file or folder.
        batches: how many at most; fewer where the text ends.
        batch_size: sequences in each.
        sequence_length: tokens in each; by default 512, or as many as the model takes.
        layers: names of routers to keep, or patterns ("*.3.mlp"); all by default.
        device: "cpu", "cuda", or "auto" to spread the model over what there is.
        dtype: to compute in; "auto" is what the weights are stored in.
        on_batch: called after every batch.
    """
    folder, out = Path(folder), Path(out)
    if batches < 1 or batch_size < 1 or (sequence_length is not None and sequence_length < 2):
        raise ValueError(
            f"cannot record {batches} batches of {batch_size} sequences of "
            f"{sequence_length or DEFAULT_LENGTH} tokens: at least 1, 1, 2"
        )
    # reported before a model is loaded
    if is_trace(out):
        raise TraceError(f"{out} already holds a trace: take another folder")
    config, tokenizer = _open_config(folder)
    length = _sequence_length(config, sequence_length)
    skip = _unwanted_routers(config, layers)
    listener = _ScoreListener(_load_model(folder, config, device, dtype), skip)
    writer: TraceWriter | None = None
    try:
        for number, ids in enumerate(
            islice(read_batches(tokenizer, data, batch_size, length), batches)
        ):
            seen = listener.hear(ids)
            if writer is None:
                about = TraceAbout(
                    gate=listener.spec.score,
                    sequence_length=length,
                    groups=listener.spec.groups,
                    model=str(folder),
                    family=config.model_type,
                    data=data,
                )
                writer = TraceWriter(out, top_k=listener.top_k, layers=listener.names, about=about)
            for router in listener.routers:
                _append_record(writer, number, router, *seen[router.name])
            on_batch()
    finally:
        listener.balancing.detach()
        if writer is not None:
            writer.close()
    return Trace.open(out)


class _ScoreListener:
    """A model whose routers are heard: which experts every token chose, and by which scores."""

    def __init__(self, model: Any, skip: Sequence[str]) -> None:
        self.model = model
        self.balancing = Balancing(model, "none", group=None, skip=skip)
        self.balancing.context.records = True
        self.routers = self.balancing.routers
        self.heard: dict[str, list[tuple[Tensor, Tensor | None]]] = {}
        for router in self.routers:
            router.observer = self._hear

    @property
    def names(self) -> list[str]:
        return [router.name for router in self.routers]

    @property
    def top_k(self) -> int:
        return self.routers[0].balancer.top_k

    @property
    def spec(self) -> RoutingSpec:
        """How the routers choose, all alike."""
        return self.routers[0].found.spec

    def hear(self, ids: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """(experts, scores) of every router, of one forward."""
        self.heard = {}
        places = self.model.get_input_embeddings().num_embeddings
        if int(ids.max()) >= places:
            raise ValueError(
                f"the tokenizer gives token {int(ids.max())}, and the model has {places}: is it "
                "another model's?"
            )
        # without the head: nobody needs a logit for every word of the vocabulary
        self.model.base_model(input_ids=ids.to(self.model.device), use_cache=False)
        for router in self.routers:
            router.count.clear()
        if missing := [name for name in self.names if name not in self.heard]:
            raise RuntimeError(
                f"these routers were not heard: {', '.join(missing)}. Leave them out by --layer"
            )
        return {name: self._joined(name) for name in self.names}

    def _hear(self, router: BalancedRouter, experts: Tensor, scores: Tensor | None) -> None:
        self.heard.setdefault(router.name, []).append(
            (experts.cpu(), None if scores is None else scores.float().cpu())
        )

    def _joined(self, name: str) -> tuple[Tensor, Tensor]:
        experts, scores = zip(*self.heard[name], strict=True)
        if any(each is None for each in scores):
            raise ValueError(
                f"{name}'s gate does not return its logits in this transformers: upgrade it, or "
                "leave it out by --layer"
            )
        return torch.cat(experts), torch.cat(scores)


def _open_config(folder: Path) -> tuple[Any, Any]:
    """The model's config and tokenizer; whatever would fail after minutes of loading is told here."""
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


def _sequence_length(config: Any, wanted: int | None) -> int:
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    if wanted is None:
        return min(DEFAULT_LENGTH, most or DEFAULT_LENGTH)
    if most and wanted > most:
        raise ValueError(
            f"sequences of {wanted} tokens are longer than the model's {most} "
            "(max_position_embeddings)"
        )
    return wanted


def _unwanted_routers(config: Any, layers: Sequence[str]) -> list[str]:
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
            f"a trace is of routers that choose alike, and these do not: {', '.join(kept)}. "
            "Choose by --layer"
        )
    if specs[0].groups and (found[kept[0]].bias is None or specs[0].group_worth != "top2"):
        raise ValueError(
            f"{kept[0]} chooses its groups in a way that the arena cannot replay: its scores are "
            "not kept"
        )
    return [name for name in found if name not in kept]


def _load_model(folder: Path, config: Any, device: str, dtype: str) -> Any:
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


def _append_record(
    writer: TraceWriter, step: int, router: BalancedRouter, experts: Tensor, scores: Tensor
) -> None:
    shift = router.applied_shift.cpu().numpy()
    loads = torch.bincount(experts.flatten(), minlength=scores.shape[1])
    writer.append(
        step,
        router.name,
        shift=shift,
        shift_after=shift,
        loads=loads.numpy(),
        scores=scores.numpy(),
        whole=True,
    )
