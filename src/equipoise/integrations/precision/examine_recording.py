"""The choices of recorded routers: of a trace with scores, or of experts with margins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from equipoise.attach.replay.expert_choices import ExpertChoices
from equipoise.integrations.precision.choices import (
    ChoicesInPrecision,
    RouterInput,
    compare_choices,
)
from equipoise.integrations.precision.summary import ExaminedRouter, join_choices
from equipoise.routing import Groups
from equipoise.routing.rounding import Precision
from equipoise.storage.arrays import Array
from equipoise.trace import Record, Trace, is_trace


def examine_recording(source: Path, precisions: Sequence[Precision]) -> dict[str, ExaminedRouter]:
    """By layer, from a trace's folder or a recording's file."""
    if is_trace(source) or is_trace(source / "trace"):
        return _examine_trace(Trace.open(source), precisions)
    if source.is_file():
        return _examine_margins(source)
    if (source / "config.json").is_file():
        raise ValueError(
            f"{source} is a model: name a text that it is to read by --text, or give a trace with "
            "scores (equipoise record) in its place"
        )
    raise ValueError(
        f"{source} is not the folder of a model (no config.json), not a trace (no trace.json), and "
        "not a recording of experts (.npz)"
    )


def _examine_trace(trace: Trace, precisions: Sequence[Precision]) -> dict[str, ExaminedRouter]:
    groups = None if trace.groups is None else Groups(*trace.groups)
    found = {}
    for layer in trace.layers:
        steps = sorted({*trace.sampled_steps(layer), *trace.whole_steps(layer)})
        if not steps:
            raise ValueError(
                f"the trace kept no scores of {layer}: record it by equipoise record, or with "
                "trace_scores=256"
            )
        records = [trace.record(layer, step) for step in steps]
        parts = [
            compare_choices(_recorded_input(each, trace.top_k, groups), precisions)
            for each in records
        ]
        experts = records[0].scores.shape[1]
        found[layer] = ExaminedRouter(join_choices(parts), experts, trace.top_k, "scores")
    return found


def _recorded_input(record: Record, top_k: int, groups: Groups | None) -> RouterInput:
    """What a record's tokens were chosen by; without a shift that differs between experts, by their
    scores alone.
    """
    scores = torch.as_tensor(np.array(record.scores))
    shift = torch.as_tensor(np.array(record.shift)).double()
    bias = shift if bool((shift != shift[0]).any()) else None
    return RouterInput(scores.to, "identity", bias, top_k, groups)


def _examine_margins(path: Path) -> dict[str, ExaminedRouter]:
    """Nothing can be computed: margins and levels alone are known."""
    recording = ExpertChoices.load(path)
    if not recording.margins or not recording.levels:
        raise ValueError(
            f"{path} has no margins: record it by balancing.record_experts(margins=True)"
        )
    for layer, margins in recording.margins.items():
        _refuse_no_numbers(path, layer, margins, recording.levels[layer])
    return {
        layer: ExaminedRouter(
            ChoicesInPrecision(
                recording.margins[layer].astype(np.float64),
                recording.levels[layer].astype(np.float64),
                {},
                {},
            ),
            None,
            int(recording[layer].shape[1]),
            "margins",
        )
        for layer in recording.layers
        if len(recording.margins.get(layer, ()))
    }


def _refuse_no_numbers(path: Path, layer: str, margins: Array, levels: Array) -> None:
    """No comparison with NaN is true: such tokens would count as safe."""
    bad = int((np.isnan(margins) | np.isnan(levels)).sum())
    if bad:
        raise ValueError(
            f"{path}: {layer} has {bad} of {len(margins)} tokens whose margin or level is NaN: "
            "record again, with finite scores"
        )
