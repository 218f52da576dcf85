"""Recording: run a model that save_pretrained wrote over text, and keep every router's scores in a
Trace.

    record_model("my-model", "scores/a", data="texts/", batches=30)
    equipoise arena scores/a

The model is not trained, and no shift moves. What is kept is what its routers saw: the unshifted
scores of every token, the model's own correction bias as the shift, and the loads its own
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
from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.integrations.huggingface.loading import (
    DEFAULT_LENGTH,
    fit_sequence_length,
    load_model,
    open_config,
    unwanted_routers,
)
from equipoise.integrations.huggingface.reading import check_vocabulary, read_batches
from equipoise.trace import Trace, TraceAbout, TraceError, TraceWriter, is_trace


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
    config, tokenizer = open_config(folder)
    length = fit_sequence_length(config, sequence_length)
    skip = unwanted_routers(config, layers)
    listener = _ScoreListener(load_model(folder, config, device, dtype), skip)
    writer: TraceWriter | None = None
    try:
        for number, ids in enumerate(
            islice(read_batches(tokenizer, data, batch_size, length), batches)
        ):
            seen = listener.run_batch(ids)
            if writer is None:
                about = TraceAbout(
                    gate=listener.spec.score,
                    sequence_length=length,
                    groups=listener.spec.groups and listener.spec.groups[:2],
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
    """A model whose routers are watched: which experts every token chose, and by which scores."""

    def __init__(self, model: Any, skip: Sequence[str]) -> None:
        self.model = model
        self.balancing = Balancing(model, "none", group=None, skip=skip)
        self.balancing.context.records = True
        self.routers = self.balancing.routers
        self.seen: dict[str, list[tuple[Tensor, Tensor | None]]] = {}
        for router in self.routers:
            router.observer = self._keep_call

    @property
    def names(self) -> list[str]:
        return [router.name for router in self.routers]

    @property
    def top_k(self) -> int:
        return self.routers[0].balancer.top_k

    @property
    def spec(self) -> RoutingSpec:
        """How the routers choose, all in the same way."""
        return self.routers[0].found.spec

    def run_batch(self, ids: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """(experts, scores) of every router, of one forward."""
        self.seen = {}
        check_vocabulary(ids, self.model)
        # without the head: the logits of the vocabulary are not needed
        self.model.base_model(input_ids=ids.to(self.model.device), use_cache=False)
        for router in self.routers:
            router.count.clear()
        if missing := [name for name in self.names if name not in self.seen]:
            raise RuntimeError(
                f"these routers were not called: {', '.join(missing)}. Leave them out by --layer"
            )
        return {name: self._join_calls(name) for name in self.names}

    def _keep_call(self, router: BalancedRouter, experts: Tensor, scores: Tensor | None) -> None:
        self.seen.setdefault(router.name, []).append(
            (experts.cpu(), None if scores is None else scores.float().cpu())
        )

    def _join_calls(self, name: str) -> tuple[Tensor, Tensor]:
        """A router may be called several times in one forward: (T, K) experts and (T, E) scores."""
        experts, scores = zip(*self.seen[name], strict=True)
        if any(each is None for each in scores):
            raise ValueError(
                f"{name}'s gate does not return its logits in this transformers: upgrade it, or "
                "leave it out by --layer"
            )
        return torch.cat(experts), torch.cat(scores)


def _append_record(
    writer: TraceWriter, step: int, router: BalancedRouter, experts: Tensor, scores: Tensor
) -> None:
    """The shift after the batch is the shift before it: nothing is trained."""
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
