"""agree: two recordings of the same tokens, and where they took other experts.

A trainer and an engine, bf16 and float32, two commits: the same model, and some tokens choose
otherwise. A choice that was won by a hair is lost to rounding; one that was won by far is not, and
means that something else differs. And what a layer does otherwise, all later ones see: so the layer
in which a token *first* differs says more than the number that differ in the last.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from equipoise.attach.replay.agreement_layer import LayerPair, pair_layer, summarize_pair
from equipoise.attach.replay.agreement_rows import Agreement, FirstDifference, LayerAgreement
from equipoise.attach.replay.expert_choices import ExpertChoices, Rows
from equipoise.attach.replay.megatron_trace import read_megatron_trace
from equipoise.routing.rounding import precision_by_name
from equipoise.storage.layer_names import layer_number

USUAL_ULPS = 4.0
"""a model computed in a precision throughout is off by a few of its ulps, and not by half of one"""


def agree(
    first: ExpertChoices | str | Path,
    second: ExpertChoices | str | Path,
    *,
    precision: str | None = None,
    ulps: float = USUAL_ULPS,
) -> Agreement:
    """Compare the experts of two recordings of the same tokens; the order in a token is left aside.

    Args:
        first: a recording, its .npz file, or a routing trace of Megatron (.jsonl).
        second: another. Where both are of the same layers they may call them by other names, as
            long as these have the same global indices.
        precision: bf16, fp16 or fp32: tell differences that its rounding explains from others. One
            of the two must have been recorded with margins.
        ulps: how many ulps of that precision the margins of both may add up to, for a difference to
            count as rounding.

    Example:
        >>> import numpy as np
        >>> from equipoise.attach.replay import ExpertChoices
        >>> first = ExpertChoices({"layers.0": np.array([[0, 1], [2, 3]])})
        >>> second = ExpertChoices({"layers.0": np.array([[1, 0], [2, 4]])})
        >>> equipoise.agree(first, second).tokens_differ
        0.5
    """
    ours, theirs = _read_recording(first), _read_recording(second)
    rounding = None if precision is None else precision_by_name(precision)
    if rounding is not None and not (ours.margins or theirs.margins):
        raise ValueError(
            "neither recording has margins, so that nothing can be said of rounding: record one by "
            "balancing.record_experts(margins=True)"
        )
    if not ulps > 0:
        raise ValueError(f"ulps must be a number above 0, not {ulps}")
    found: list[LayerAgreement] = []
    # by the number of tokens, since a model may route those of pictures apart from those of text
    seen: dict[int, _TokensSeen] = {}
    start: FirstDifference | None = None
    for mine, other in _pair_layers(ours.layers, theirs.layers):
        _check_pair(mine, ours[mine], theirs[other])
        pair = pair_layer(ours, theirs, mine, other)
        before = seen.setdefault(len(pair.known), _TokensSeen(len(pair.known)))
        found.append(summarize_pair(pair, before.differed, rounding, ulps))
        start = start or _first_difference(pair)
        before.add_layer(pair)
    choices = sum(layer.tokens * layer.choices_differ for layer in found)
    differed, known = (
        sum(int(getattr(each, name).sum()) for each in seen.values())
        for name in ("differed", "known")
    )
    return Agreement(
        found,
        choices / max(1, sum(layer.tokens for layer in found)),
        differed / max(1, known),
        start,
        None if rounding is None else rounding.name,
        ulps if rounding is not None else 0.0,
    )


class _TokensSeen:
    """(T,) bool: tokens that were compared in some layer so far, and those that differed."""

    def __init__(self, tokens: int) -> None:
        self.known = np.zeros(tokens, bool)
        self.differed = np.zeros(tokens, bool)

    def add_layer(self, pair: LayerPair) -> None:
        self.known |= pair.known
        self.differed |= pair.differ


def _first_difference(pair: LayerPair) -> FirstDifference | None:
    if not pair.differ.any():
        return None
    token = int(pair.differ.argmax())
    return FirstDifference(
        pair.layer, token, pair.ours[token].tolist(), pair.theirs[token].tolist()
    )


def _pair_layers(ours: list[str], theirs: list[str]) -> list[tuple[str, str]]:
    """The layers of the one and of the other, in the order of the first."""
    if set(ours) == set(theirs):
        return [(name, name) for name in ours]
    mine, others = _by_number(ours), _by_number(theirs)
    if mine is None or others is None or mine.keys() != others.keys():
        raise ValueError(
            f"the two are of different layers: {', '.join(ours)}, and {', '.join(theirs)}"
        )
    return [(name, others[number]) for number, name in mine.items()]


def _by_number(layers: list[str]) -> dict[int | None, str] | None:
    found = {layer_number(name): name for name in layers}
    return found if len(found) == len(layers) and None not in found else None


def _check_pair(layer: str, ours: Rows, theirs: Rows) -> None:
    if ours.shape != theirs.shape:
        raise ValueError(
            f"{layer}: {ours.shape[0]} tokens of {ours.shape[1]} experts, and {theirs.shape[0]} "
            f"of {theirs.shape[1]}: record the same tokens twice"
        )


def _read_recording(source: ExpertChoices | str | Path) -> ExpertChoices:
    if isinstance(source, ExpertChoices):
        return source
    if Path(source).suffix == ".jsonl":
        return ExpertChoices(
            {str(layer): rows for layer, rows in read_megatron_trace(source).items()}
        )
    return ExpertChoices.load(source)
