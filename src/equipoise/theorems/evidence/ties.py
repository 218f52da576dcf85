"""Can ties explain the loads a router recorded? An exact answer.

A router adds in its own precision and may break ties otherwise than by the lowest index. So where
several experts lie at a token's K/(K+1) threshold up to rounding, which of them it chose is not
known. Everything else is: an expert clearly above the threshold was chosen, one clearly below was
not. Loads are explained if each token can choose among its tied experts so that all counts come out
as recorded. That is a flow from tokens to experts:

    token i    gives as many units as it has places left after its clear choices
    i -> k     at most one, for each expert k tied for token i
    expert k   takes its recorded load less the tokens that clearly chose it

A token counted on a wrong expert is not excused by ties between other experts.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from equipoise.optimum.arrays import Bools, Floats, Ints


def ties_explain_loads(shifted: Floats, top_k: int, loads: Ints, reach: float) -> bool:
    """Whether `loads` (E) can be those of top-K of `shifted` (T, E) if differences up to `reach`
    count as ties.
    """
    chosen, tied = _clear_and_tied_choices(shifted, top_k, reach)
    wanted = np.asarray(loads, np.int64) - chosen.sum(0)
    unsure = np.flatnonzero(tied.any(1))
    places = top_k - chosen[unsure].sum(1)
    if (wanted < 0).any() or wanted.sum() != places.sum():
        return False
    return _flow(tied[unsure], places, wanted) == places.sum()


def _clear_and_tied_choices(shifted: Floats, top_k: int, reach: float) -> tuple[Bools, Bools]:
    """(T, E) each: chosen whatever ties do; and tied, at a threshold that others share."""
    E = shifted.shape[1]
    if top_k == E:
        return np.ones(shifted.shape, bool), np.zeros(shifted.shape, bool)
    pair = np.partition(shifted, (E - top_k - 1, E - top_k), axis=1)
    left_out, lowest_chosen = pair[:, [E - top_k - 1]], pair[:, [E - top_k]]
    clearly_in, clearly_out = shifted > left_out + reach, shifted < lowest_chosen - reach
    tied = ~clearly_in & ~clearly_out
    return clearly_in & ~tied, tied


def _flow(tied: Bools, places: Ints, wanted: Ints) -> int:
    """The greatest flow source -> tokens -> experts -> sink."""
    tokens, experts = tied.shape
    source, sink = tokens + experts, tokens + experts + 1
    rows, columns = np.nonzero(tied)
    begin = np.concatenate([np.full(tokens, source), rows, tokens + np.arange(experts)])
    end = np.concatenate([np.arange(tokens), tokens + columns, np.full(experts, sink)])
    capacity = np.concatenate([places, np.ones(rows.size, np.int64), wanted]).astype(np.int32)
    graph = csr_array((capacity, (begin, end)), shape=(sink + 1, sink + 1))
    return int(maximum_flow(graph, source, sink).flow_value)
