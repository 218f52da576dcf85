"""Trace: what happened to the shifts and loads of a training, step by step, in files that survive a
crash.

Example::

    with TraceWriter("run/trace", top_k=6, layers=10, about={"gate": "sigmoid"}) as writer:
        writer.append(step, layer, shift=..., shift_after=..., loads=..., step_size=...,
                      unit="counts", scores=sample)

    trace = Trace.open("run/trace")
    trace.record(layer=3, step=trace.steps(layer=3)[-1]).loads

A record says: `shift` was added to the scores, `loads` came of it, and the update left
`shift_after`, where

    shift_after = shift + step_size * gap,    gap = target load - loads, in `unit`

(counts; tokens: / T; relative: / target). `scores` are some of the batch's rows, or all of them
(`whole=True`): the statements about fixed scores need all.

    header   what a trace is of: top K, layers, target, and where it comes from
    layout   which file holds what
    record   one step of one layer, as a reader sees it and as it is stored
    chunks   the files that hold records: load, save, map, cut off
    writer   TraceWriter, which appends
    reader   Trace, the one reader of all this
"""

from equipoise.trace.error import TraceError
from equipoise.trace.header import TraceAbout, TraceHeader
from equipoise.trace.layout import is_trace
from equipoise.trace.reader import Trace
from equipoise.trace.record import STEP_SIZE_UNITS as UNITS
from equipoise.trace.record import Record
from equipoise.trace.writer import TraceWriter

__all__ = [
    "UNITS",
    "Record",
    "Trace",
    "TraceAbout",
    "TraceError",
    "TraceHeader",
    "TraceWriter",
    "is_trace",
]
