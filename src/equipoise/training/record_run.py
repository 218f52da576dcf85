"""record_run: run a finished training's model over text and keep every router's scores in a Trace.

    record_run("runs/a", "scores/a", batches=30)
    equipoise arena scores/a

The model is the newest checkpoint of a training of ours, and stays as it is: nothing learns. Scores
are kept whole, so that loads, floors and exact optima of the batches are all known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.model import DeepSeekMoE
from equipoise.routing import route
from equipoise.trace import Trace, TraceAbout, TraceWriter
from equipoise.training.config import Config
from equipoise.training.data.batches import Batches
from equipoise.training.data.corpus import Corpus, prepare_corpus
from equipoise.training.open_run import open_run
from equipoise.training.scores import choose_layers, watch_scores


@torch.no_grad()
def record_run(
    run: str | Path,
    out: str | Path,
    *,
    data: str | None = None,
    batches: int = 30,
    batch_size: int | None = None,
    layers: Sequence[str] = (),
    on_batch: Callable[[], None] = lambda: None,
) -> Trace:
    """Keep the scores of a run's newest checkpoint over text.

    Args:
        run: the folder of a training.
        out: the folder of the trace; must not hold one.
        data: a text file or folder; by default what the run trained on.
        batches: how many at most; fewer where the text ends.
        batch_size: sequences in each; by default the run's.
        layers: names of layers to keep, or patterns; all by default.
        on_batch: called after every batch.
    """
    if batches < 1 or (batch_size is not None and batch_size < 1):
        raise ValueError(
            f"cannot record {batches} batches of {batch_size or 'some'} sequences: both are at "
            "least 1"
        )
    opened = open_run(run, device="cpu")
    config, net = opened.config, opened.model
    size = config.batch_size if batch_size is None else batch_size
    texts = Batches(
        _read_tokens(opened.corpus, config, data), config.model.sequence_length, size, config.seed
    )
    batches = min(batches, _whole_batches(texts))
    about = TraceAbout(
        gate=config.model.score,
        sequence_length=config.model.sequence_length,
        model=str(run),
        step=opened.step,
        data=data or config.data,
    )
    names = choose_layers(list(net.moe_layers), layers)
    with TraceWriter(out, top_k=config.model.top_k, layers=names, about=about) as writer:
        for number in range(batches):
            with watch_scores(net) as scores:
                net(texts[number][0])
            for name in names:
                _append_scores(writer, net, number, name, scores[name])
            on_batch()
    return Trace.open(out)


def _whole_batches(texts: Batches) -> int:
    """How many there are before the text would start over."""
    found = texts.windows // texts.batch_size
    if found < 1:
        raise ValueError(
            f"the text has {texts.windows} sequences of {texts.sequence_length} tokens, too few "
            f"for a batch of {texts.batch_size}: take more text, or a smaller batch"
        )
    return found


def _read_tokens(own: Corpus, config: Config, data: str | None) -> np.ndarray:
    """The training's own texts, or others in its tokens."""
    if data is None:
        return own.train
    return prepare_corpus(
        data, vocab_size=config.model.vocab_size, tokenizer=str(own.folder / "tokenizer.json")
    ).train


def _append_scores(
    writer: TraceWriter, net: DeepSeekMoE, step: int, name: str, scores: Tensor
) -> None:
    """One layer's scores (T, E) of a batch, and the loads that the run's shift makes of them."""
    rule = net.moe_layers[name].router.balancer
    shift = rule.shift_or_zeros.cpu()
    loads = route(scores, rule.top_k, shift=shift, runner_up=False).loads
    writer.append(
        step,
        name,
        shift=shift.numpy(),
        shift_after=shift.numpy(),
        loads=loads.numpy(),
        scores=scores.numpy(),
        whole=True,
    )
