"""record: run a trained model over text and keep every router's scores in a Trace.

    record("runs/a", "scores/a", batches=30)
    equipoise arena scores/a

The model is the newest checkpoint of a training of ours, and stays as it is: nothing learns. Scores
are kept whole, so that loads, floors and exact optima of the batches are all known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.model import DeepSeekMoE
from equipoise.routing import route
from equipoise.storage.optional import import_optional
from equipoise.trace import Trace, TraceWriter
from equipoise.training.checkpoint import WHOLE
from equipoise.training.config import Config, read
from equipoise.training.data.batches import Batches
from equipoise.training.data.corpus import prepare
from equipoise.training.scores import choose_layers, watch_scores


@torch.no_grad()
def record(
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
    config = _config(Path(run))
    net, step = load(Path(run), config)
    size = config.batch_size if batch_size is None else batch_size
    texts = Batches(_tokens(config, data), config.model.sequence_length, size, config.seed)
    batches = min(batches, _whole_batches(texts))
    about = {
        "gate": config.model.score,
        "model": str(run),
        "step": step,
        "data": data or config.data,
    }
    about["sequence_length"] = config.model.sequence_length
    names = choose_layers(list(net.moe_layers), layers)
    with TraceWriter(out, top_k=config.model.top_k, layers=names, about=about) as writer:
        for number in range(batches):
            with watch_scores(net) as scores:
                net(texts[number][0])
            for name in names:
                _append(writer, net, number, name, scores[name])
            on_batch()
    return Trace.open(out)


def _whole_batches(texts: Batches) -> int:
    """How many there are before the text would begin anew."""
    found = texts.windows // texts.batch_size
    if found < 1:
        raise ValueError(
            f"the text has {texts.windows} sequences of {texts.sequence_length} tokens, too few "
            "for a batch of "
            f"{texts.batch_size}: take more text, or a smaller batch"
        )
    return found


def load(run: Path, config: Config) -> tuple[DeepSeekMoE, int]:
    """The model of a run's newest checkpoint, in evaluation, and its step."""
    found = sorted((run / "checkpoints").glob("step-" + 8 * "[0-9]"))
    if not found:
        raise ValueError(
            f"{run} has no checkpoint to run: train with --checkpoint-every, or choose another "
            "folder"
        )
    if not (found[-1] / WHOLE).exists():
        raise ValueError(
            f"{found[-1]} is in shards of several ranks: go on with it by one process first"
        )
    tensors = import_optional("safetensors.torch", extra="train").load_file(found[-1] / WHOLE)
    net = DeepSeekMoE(config.model, balancer=config.make_balancer)
    net.load_state_dict(
        {
            name[len("model.") :]: value
            for name, value in tensors.items()
            if name.startswith("model.")
        }
    )
    return net.eval(), int(json.loads((found[-1] / "state.json").read_text())["step"])


def _config(run: Path) -> Config:
    if not (run / "config.yaml").exists():
        raise ValueError(f"{run} is not the folder of a training: there is no config.yaml in it")
    return read(run / "config.yaml")


def _tokens(config: Config, data: str | None) -> np.ndarray:
    """The training's own texts, or others in its tokens."""
    own = prepare(config.data, vocab_size=config.model.vocab_size, tokenizer=config.tokenizer)
    if data is None:
        return own.train
    return prepare(
        data, vocab_size=config.model.vocab_size, tokenizer=str(own.folder / "tokenizer.json")
    ).train


def _append(writer: TraceWriter, net: DeepSeekMoE, step: int, name: str, scores: Tensor) -> None:
    rule = net.moe_layers[name].router.balancer
    shift = getattr(rule, "shift", torch.zeros(rule.num_experts)).detach().cpu()
    loads = route(scores, rule.top_k, choose_by=scores + shift, runner_up=False).loads
    writer.append(
        step,
        name,
        shift=shift.numpy(),
        shift_after=shift.numpy(),
        loads=loads.numpy(),
        scores=scores.numpy(),
        whole=True,
    )
