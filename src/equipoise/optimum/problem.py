"""The program: which tokens go to which experts, if every expert must get its share.

    max  sum_ik scores_ik x_ik      x in {0, 1}
         sum_k x_ik = K             each token takes K distinct experts
         sum_i x_ik = target_k      expert k takes target_k tokens

(the paper's eq. 4). Its dual, with one variable per expert, the shift p (errata 1: the printed dual
lacks x <= 1):

    min_p  sum_i (sum of the K largest of scores_i + p)  -  sum_k target_k p_k

The two optima are equal, and integral: the program is a flow. Where a target is no whole number,
the load may be its floor or its ceiling, and -target_k p_k becomes max(-floor p_k, -ceil p_k): then
a constant added to p counts, and p must not be centred. Capacities of devices, and one number for
each, are in bounds.py; targets and loads below are then those of devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.optimum.bounds import LoadBounds, device_places
from equipoise.optimum.sums import largest_size
from equipoise.selection.threads import run_in_parts
from equipoise.storage.arrays import Array

_LARGEST_SUMMED = 1e290
"""scores and shifts up to that can be summed over 1e18 choices in float64"""


@dataclass(frozen=True)
class Problem:
    """Scores (T, E), K, and the least and greatest load of every expert. Made by `Problem.of`,
    which checks them.
    """

    scores: Array
    top_k: int
    lower: Array
    """(E,) int64"""
    upper: Array
    """(E,) int64"""
    largest: float
    """largest |score|"""
    place: Array
    """(E,) the device of each expert; lower and upper are (D,), of devices"""

    @staticmethod
    def of(scores: Any, top_k: int, target: Any = None, devices: Any = None) -> Problem:
        """Checks what is given, and names what is wrong with it.

        Args:
            scores: (T, E), numpy or a CPU tensor.
            top_k: K.
            target: (E,) loads; default T*K/E each. With devices (D,), default T*K/D.
            devices: how many, or the device of every expert; None: experts have loads of their own.
        """
        scores = readable_scores(scores)
        T, E = scores.shape
        top_k = _whole_top_k(top_k, E)
        largest = _largest_score(scores)
        place = device_places(devices, E)
        lower, upper = _load_bounds(target, T, top_k, np.bincount(place), devices)
        return Problem(scores, top_k, lower, upper, largest, place)

    def near_one(self) -> tuple[Problem, int]:
        """The same problem in units of 2^exponent, where products of scores neither over- nor
        underflow; and the exponent.
        """
        exponent = math.frexp(self.largest)[1]
        if abs(exponent) < 64:
            return self, 0
        scores = np.ldexp(self.scores.astype(np.float64), -exponent)
        return replace(self, scores=scores, largest=math.ldexp(self.largest, -exponent)), exponent

    @property
    def num_tokens(self) -> int:
        return len(self.scores)

    @property
    def num_experts(self) -> int:
        return int(self.scores.shape[1])

    @property
    def bounds(self) -> LoadBounds:
        return LoadBounds(self.lower, self.upper, self.place)

    @property
    def whole(self) -> bool:
        """Whether every expert has one allowed load. If not, a constant in the shift counts."""
        return bool((self.lower == self.upper).all())

    @property
    def target(self) -> Array:
        """(E,) float64: the wanted loads; fractions where floor and ceiling are allowed."""
        free = self.upper - self.lower
        rest = self.num_tokens * self.top_k - int(self.lower.sum())
        return self.lower + free * (rest / max(1, int(free.sum())))

    def value(self, experts: Array) -> float:
        """sum_ik scores_ik x_ik in float64, correctly rounded over blocks."""
        parts = [
            np.take_along_axis(rows, chosen, 1).sum(dtype=np.float64)
            for rows, chosen in _row_blocks(self.scores, np.asarray(experts))
        ]
        return math.fsum(parts)

    def dual(self, shift: Array) -> float:
        """The reduced dual, in float64: at least the value of any allowed assignment."""
        shift = np.asarray(shift, np.float64)
        parts = []
        for (rows,) in _row_blocks(self.scores):
            shifted = rows + shift
            if self.top_k < self.num_experts:
                shifted = np.partition(shifted, -self.top_k, axis=1)[:, -self.top_k :]
            parts.append(shifted.sum())
        return math.fsum([*parts, *self.price(shift)])

    def price(self, shift: Array) -> Array:
        """(D,) what the targets take off the dual: -target_k p_k, or max over floor and ceiling.

        inf where experts of a device have different shifts: that is no dual of its load, and bounds
        nothing.
        """
        price = self.bounds.price(shift)
        if (price[self.place] != shift).any():
            return np.full(len(price), np.inf)
        shift = price
        return np.maximum(-self.lower * shift, -self.upper * shift)

    def rounding_bound(self, shift: Array) -> float:
        """How far float64 may put `dual` from `value` when both are optimal.

        A shifted score is rounded once, by half an ulp of |score| + |shift|; sums of a block of n
        numbers are pairwise, and add log2 n such roundings. The solver's whole numbers add 2^-52 of
        the largest score for each of the TK choices.
        """
        size = self.largest + float(np.abs(shift).max(initial=0.0))
        return self.num_tokens * self.top_k * size * 32 * float(np.finfo(np.float64).eps)


def readable_scores(scores: Any) -> Array:
    """Contiguous, native float32 or float64; a CPU tensor or a memory map is not copied."""
    array = to_numpy(scores, "scores")
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"scores must be (tokens, experts) and not empty, but have shape {tuple(array.shape)}"
        )
    if array.dtype.kind != "f":
        raise TypeError(f"scores must be float32 or float64, not {array.dtype}")
    if array.dtype.itemsize < 4:
        # exact
        array = array.astype(np.float32)
    elif array.dtype.itemsize > 8:
        raise TypeError(f"scores must be float32 or float64, not {array.dtype}")
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return array if array.flags.writeable else np.asarray(_Unlocked(array))


class _Unlocked:
    """A read-only array made writable without a copy. Nothing here writes to scores, but for a
    read-only array numba would compile all kernels once more.
    """

    def __init__(self, array: Array) -> None:
        # keeps the memory, or the map, alive
        self.array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = array.__array_interface__ | {"data": (address, False)}


def to_numpy(values: Any, name: str) -> Array:
    """numpy's view of an array or of a CPU tensor; half precision, which numpy may not know, is
    widened exactly.
    """
    # a torch tensor; torch itself is not imported here
    if hasattr(values, "detach"):
        values = values.detach()
        if values.device.type != "cpu":
            raise ValueError(f"{name} are on {values.device}; pass {name}.cpu()")
        if values.is_floating_point() and values.element_size() < 4:
            values = values.float()
        values = values.numpy()
    return np.asarray(values)


def readable_shift(shift: Any, num_experts: int) -> Array:
    """(E,) float64, finite; else an error that says what is wrong."""
    shift = to_numpy(shift, "shift")
    if shift.shape != (num_experts,):
        raise ValueError(
            f"the shift must have one number for each of {num_experts} experts, but has shape "
            f"{shift.shape}"
        )
    shift = shift.astype(np.float64)
    if not np.isfinite(shift).all():
        raise ValueError(
            f"the shift of expert {int(np.flatnonzero(~np.isfinite(shift))[0])} is not finite"
        )
    largest = int(np.abs(shift).argmax())
    if abs(shift[largest]) > _LARGEST_SUMMED:
        raise ValueError(
            f"the shift of expert {largest} is {shift[largest]:.3g}: sums with it would overflow "
            "float64; give a shift of about the scores' size"
        )
    return shift


def _whole_top_k(top_k: int, num_experts: int) -> int:
    if isinstance(top_k, bool) or int(top_k) != top_k:
        raise TypeError(f"top_k must be a whole number, not {top_k!r}")
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k = {top_k} is not between 1 and the {num_experts} experts")
    return int(top_k)


def _largest_score(scores: Array) -> float:
    """max |score|; refuses NaN and infinity with their place."""
    sizes: list[float] = []
    run_in_parts(len(scores), lambda start, stop: sizes.append(largest_size(scores[start:stop])))
    largest = max(sizes)
    if not math.isfinite(largest):
        bad = ~np.isfinite(scores)
        token, expert = (int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"scores hold {int(bad.sum())} values that are NaN or infinite, the first at (token "
            f"{token}, expert {expert})"
        )
    if largest > _LARGEST_SUMMED:
        raise ValueError(
            f"scores reach {largest:.3g}: their sum would overflow float64; divide them by a "
            "constant"
        )
    return largest


def _load_bounds(
    target: Any, T: int, top_k: int, experts: Array, devices: Any
) -> tuple[Array, Array]:
    """Least and greatest load of each expert; or device, where they hold `experts` (D,) each."""
    D, choices, what = len(experts), T * top_k, "expert" if devices is None else "device"
    if target is None:
        _require_possible(np.full(D, choices / D), T, experts, what)
        return np.full(D, choices // D), np.full(D, -(-choices // D))
    wanted = to_numpy(target, "targets")
    if wanted.shape != (D,):
        raise ValueError(
            f"the target must have one load for each of {D} {what}s, but has shape {wanted.shape}"
        )
    if wanted.dtype.kind not in "iuf" or not np.isfinite(wanted).all():
        raise ValueError("targets must be finite numbers")
    _require_possible(wanted, T, experts, what)
    total = math.fsum(wanted.tolist())
    if abs(total - choices) > 1e-9 * choices:
        raise ValueError(
            f"targets sum to {total:.15g}, but {T} tokens taking {top_k} experts each make "
            f"{choices}"
        )
    # a float that means a whole number is one: 4096 * (1/3) * 3
    nearest = np.rint(wanted)
    wanted = np.where(np.abs(wanted - nearest) <= 1e-9 * np.maximum(nearest, 1), nearest, wanted)
    return np.floor(wanted).astype(np.int64), np.ceil(wanted).astype(np.int64)


def _require_possible(wanted: Array, T: int, experts: Array, what: str) -> None:
    """Refuse a load that no tokens can make: each takes an expert at most once."""
    outside = np.flatnonzero((wanted < 0) | (wanted > T * experts))
    if len(outside):
        k = int(outside[0])
        each = "" if experts[k] == 1 else f", {experts[k]} times for its {experts[k]} experts"
        raise ValueError(
            f"the target of {what} {k} is {wanted[k]}: not between 0 and the {T} tokens there "
            f"are{each}"
        )


def _row_blocks(*arrays: Array, tokens: int = 16384) -> Any:
    """The arrays' rows, 16,384 tokens at a time: fast in numpy, and little memory."""
    for start in range(0, len(arrays[0]), tokens):
        yield tuple(array[start : start + tokens] for array in arrays)
