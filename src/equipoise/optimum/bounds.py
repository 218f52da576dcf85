"""Which loads are allowed: of every expert, or of devices that hold several.

    max  sum_ik scores_ik x_ik      0 <= x_ik <= 1
         sum_k x_ik = K
         lower_d <= sum over the experts k of device d, and over i, of x_ik <= upper_d

A token may take several experts of one device, each at most once. That is still a flow, so that the
optimum is integral, and its dual has one number q_d per device: expert k's shift is q_d(k), the
same for all experts of a device, and tokens take the top-K of scores + shift as before. Experts
with loads of their own are devices of one expert.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from equipoise.storage.arrays import Array


class LoadBounds(NamedTuple):
    """Bounds on the loads of D devices."""

    lower: Array
    """(D,) int64"""
    upper: Array
    """(D,) int64"""
    place: Array
    """(E,) int64: the device of each expert, every one from 0 to D - 1"""

    def held(self, loads: Array) -> Array:
        """(D,): loads of experts, summed over each device."""
        return sum_by_device(loads, self.place)

    def price(self, shift: Array) -> Array:
        """(D,): the number that the experts of a device share, of a shift (E,)."""
        return shift[first_experts(self.place)]


def sum_by_device(values: Array, place: Array) -> Array:
    """(D,) sums of values (E,) over the experts of each device, in their dtype."""
    sums = np.zeros(int(place.max()) + 1, values.dtype)
    np.add.at(sums, place, values)
    return sums


def first_experts(place: Array) -> Array:
    """(D,) the lowest expert of each device."""
    return np.unique(place, return_index=True)[1]


def device_places(devices: Any, num_experts: int) -> Array:
    """(E,) int64: the device of each expert, numbered from 0; None: every expert is alone."""
    if devices is None:
        return np.arange(num_experts)
    if np.ndim(devices) == 0:
        if int(devices) != devices or devices < 1 or num_experts % int(devices):
            raise ValueError(
                f"{num_experts} experts do not divide over {devices} devices: pass the device of "
                "every expert instead"
            )
        return np.arange(num_experts) // (num_experts // int(devices))
    named = np.asarray(devices)
    if named.shape != (num_experts,):
        raise ValueError(
            f"devices have shape {named.shape}, but there are {num_experts} experts: name the "
            "device of each"
        )
    return np.unique(named, return_inverse=True)[1].astype(np.int64)
