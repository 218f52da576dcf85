"""router_precision: which experts change if the router is computed in bf16, fp16 or fp32.

    found = equipoise.router_precision("my-model", text="texts/", precisions=("bf16", "fp16"))
    print(*found.verdicts)

A model is run over text, and every router's choice computed anew in each precision from the hidden
states it was given (choices.py). A trace has scores and no hidden states; a recording of experts
may have margins alone: they tell less, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from equipoise.integrations.huggingface.loading import (
    DEFAULT_LENGTH,
    fit_sequence_length,
    load_model,
    open_config,
)
from equipoise.integrations.huggingface.reading import read_batches
from equipoise.integrations.precision.examine_model import examine_model
from equipoise.integrations.precision.examine_recording import examine_recording
from equipoise.integrations.precision.summary import share_in_any_layer, summarize_layer
from equipoise.results.router_precision import RouterPrecision
from equipoise.routing.rounding import Precision, precision_by_name

ALLOWED_SHARE = 0.01


def router_precision(
    source: str | Path,
    text: str | Path | None = None,
    *,
    precisions: Sequence[str] = ("bf16", "fp16", "fp32"),
    allowed: float = ALLOWED_SHARE,
    batches: int = 8,
    batch_size: int = 4,
    sequence_length: int | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    on_batch: Callable[[], None] = lambda: None,
) -> RouterPrecision:
    """The share of tokens whose experts change where logits, bias or both are in a precision.

    Args:
        source: the folder of a Hugging Face model; or, without a text, a trace with scores, or a
            recording of experts with margins (.npz).
        text: a file or folder that the model reads.
        precisions: of bf16, fp16 and fp32. All are compared with float64.
        allowed: share of tokens in a layer above which a precision is refused.
        batches: how many at most; fewer where the text ends.
        batch_size: sequences in each.
        sequence_length: tokens in each; by default 512, or as many as the model takes.
        device: "cpu", "cuda", or "auto" to spread the model over what there is.
        dtype: that the model runs in; "auto" is what its weights are stored in.
        on_batch: called after every batch.

    Example:
        >>> found = equipoise.router_precision("my-model", "text.txt")  # doctest: +SKIP
        >>> print(*found.verdicts, sep="\\n")  # doctest: +SKIP
    """
    source, wanted = Path(source), _checked_precisions(precisions)
    if batches < 1:
        raise ValueError(f"cannot read {batches} batches: at least 1 batch is needed")
    if not 0 <= allowed <= 1:
        raise ValueError(f"allowed is a share of tokens from 0 to 1, not {allowed}")
    skipped: dict[str, str] = {}
    if text is None:
        examined = examine_recording(source, wanted)
    else:
        model, ids = _open_model(source, str(text), batch_size, sequence_length, device, dtype)
        examined, skipped = examine_model(model, islice(ids, batches), wanted, on_batch)
    return RouterPrecision(
        model=str(source),
        allowed=allowed,
        precisions=tuple(each.name for each in wanted),
        layers=tuple(summarize_layer(name, each, wanted) for name, each in examined.items()),
        any_layer=share_in_any_layer([each.choices for each in examined.values()], wanted),
        skipped=skipped,
    )


def _checked_precisions(names: Sequence[str]) -> tuple[Precision, ...]:
    wanted = tuple(dict.fromkeys(map(precision_by_name, names)))
    if not wanted:
        raise ValueError("name at least one precision: bf16, fp16 or fp32")
    return wanted


def _open_model(
    folder: Path, text: str, rows: int, length: int | None, device: str, dtype: str
) -> tuple[Any, Iterator[Tensor]]:
    """The model, and batches of its tokens."""
    if rows < 1 or (length is not None and length < 2):
        raise ValueError(
            f"cannot read batches of {rows} sequences of {length or DEFAULT_LENGTH} tokens: at "
            "least 1 and 2"
        )
    config, tokenizer = open_config(folder)
    length = fit_sequence_length(config, length)
    model = load_model(folder, config, device, dtype)
    return model, read_batches(tokenizer, text, rows, length)
