"""Which experts can be among a token's best at all: few, and found without sorting the others.

Take experts in groups and of each group the greatest shifted score. The K+1-th largest of these is
the floor: K+1 experts reach it, so that none below it is among the K+1 best. Of 896 experts in 64
groups some twenty reach the floor for K = 16, and only they are sorted.

Both passes over a token's scores go along its row, many experts an instruction: a running maximum,
and a comparison whose bits name experts. The floor itself is found for many tokens at once, by
the network of packed.py. Where most experts tie, all are candidates, and time is that of sorting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from equipoise.selection.packed import exact_kernel
from equipoise.storage.arrays import Array

_WIDTH = 64
"""experts compared at once"""
_STEP = 16
"""experts whose maxima are taken at once"""


_vector_code: Any = intrinsic


def _load_many(context: Any, builder: Any, array: Any, value: Any, start: Any, count: int) -> Any:
    """Where `count` numbers of an array begin, as a pointer to a vector, and the vector."""
    many = ir.VectorType(context.get_value_type(array.dtype), count)
    data = context.make_array(array)(context, builder, value).data
    place = builder.bitcast(builder.gep(data, [start]), many.as_pointer())
    return place, builder.load(place, align=array.dtype.bitwidth // 8)


@_vector_code
def _raise_maxima(
    typing_context: Any, most: Any, group: Any, row: Any, shift: Any, start: Any
) -> Any:
    """most[group + b] becomes row[start + b] + shift[start + b] where that is greater, b < 16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held, at, scores, moved, first = arguments
        place, before = _load_many(context, builder, most, held, at, _STEP)
        shifted = builder.fadd(
            _load_many(context, builder, row, scores, first, _STEP)[1],
            _load_many(context, builder, shift, moved, first, _STEP)[1],
        )
        greater = builder.fcmp_ordered(">", shifted, before)
        after = builder.select(greater, shifted, before)
        builder.store(after, place, align=most.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(most, types.intp, row, shift, types.intp), generate


@_vector_code
def _reaching(typing_context: Any, row: Any, shift: Any, start: Any, floor: Any) -> Any:
    """Bit b: whether not row[start + b] + shift[start + b] < floor, for b below 64. NaN reaches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, moved, first, least = arguments
        shifted = builder.fadd(
            _load_many(context, builder, row, scores, first, _WIDTH)[1],
            _load_many(context, builder, shift, moved, first, _WIDTH)[1],
        )
        nothing = ir.Constant(shifted.type, ir.Undefined)
        one = builder.insert_element(nothing, least, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), _WIDTH), [0] * _WIDTH)
        floors = builder.shuffle_vector(one, nothing, zeros)
        bits = builder.fcmp_unordered(">=", shifted, floors)
        return builder.bitcast(bits, ir.IntType(_WIDTH))

    return types.int64(row, shift, types.intp, row.dtype), generate


@_vector_code
def _lowest_bit(typing_context: Any, bits: Any) -> Any:
    """The place of the lowest bit that is set; `bits` is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


def group_count(num_experts: int, wanted: int) -> int:
    """Into how many groups experts are taken, a power of two; 0 where it does not pay."""
    groups = 32
    while groups < 3 * wanted:
        groups *= 2
    return groups if num_experts >= 2 * groups else 0


@exact_kernel
def group_maxima(row: Array, shift: Array, most: Array) -> None:
    """most[g] = the greatest row + shift of experts g, g + G, g + 2 G ... NaN is passed over: a
    floor may be lower than it need be, never higher.
    """
    G, E = len(most), len(row)
    most[:] = -np.inf
    for start in range(0, E - _STEP + 1, _STEP):
        _raise_maxima(most, start & (G - 1), row, shift, start)
    for k in range(E // _STEP * _STEP, E):
        most[k & (G - 1)] = max(most[k & (G - 1)], row[k] + shift[k])


@exact_kernel
def list_reaching(row: Array, shift: Array, floor: float, found: Array) -> int:
    """The experts not below the floor, rising, into `found`; and how many. Needs 64 experts."""
    E, count = len(row), 0
    for start in range(0, E, _WIDTH):
        # the last ones are looked at together with some before them, whose bits are dropped
        first = min(start, E - _WIDTH)
        bits = _reaching(row, shift, first, floor) & (-1 << (start - first))
        while bits != 0:
            found[count] = first + _lowest_bit(bits)
            count += 1
            bits &= bits - 1
    return count
