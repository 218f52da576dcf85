"""fullest: from the imbalance of experts to the load of the fullest device.

If loads deviate by m of the target on average, and are normal and independent, an expert's load has
a standard deviation of m sqrt(pi/2), a device with E/P experts one of m sqrt(pi/2) / sqrt(E/P), and
the fullest of P lies M_P of those above the mean, M_P being the expected maximum of P standard
normal numbers.

Loads of a router that nobody balances are not normal: a few experts have most of the tokens, and
the fullest device more than this says. Where the fullest device was measured, use that.
"""

from __future__ import annotations

import math

_GRID_STEP = 1 / 128


def fullest_device(imbalance: float, num_experts: int, devices: int, top_k: int = 1) -> float:
    """The expected load of the fullest of `devices`, over the mean of all: 1 is balanced.

    At most E/K or the number of devices: all tokens are then on one.
    """
    check_imbalance(imbalance)
    most = greatest_fullest(num_experts, devices, top_k)
    return min(most, 1 + expected_excess(imbalance, num_experts, devices))


def imbalance_of_fullest(fullest: float, num_experts: int, devices: int) -> float:
    """The imbalance whose fullest device this would be, by the same law: its inverse."""
    per_unit = expected_excess(1.0, num_experts, devices)
    if per_unit == 0:
        raise ValueError("one device is always the fullest: there is no imbalance to tell")
    return (fullest - 1) / per_unit


def greatest_fullest(num_experts: int, devices: int, top_k: int) -> float:
    """What the fullest device can have at most: a token chooses K experts, and none twice."""
    per_device = max(1, num_experts // devices)
    return devices * min(1.0, per_device / top_k)


def fullest_by_chance(tokens: int, num_experts: int, devices: int, top_k: int) -> float:
    """What chance alone leaves of independent tokens, each K of E experts, all equally likely.

    A token's choices on a device with E/P experts are hypergeometric, with mean K/P. Loads of
    devices sum to all choices, so that each is that much less like the others: sqrt(P/(P - 1)).
    """
    if devices == 1 or num_experts == 1:
        return 1.0
    mean = top_k / devices
    variance = mean * (1 - 1 / devices) * (num_experts - top_k) / (num_experts - 1)
    apart = math.sqrt(devices / (devices - 1))
    return 1 + expected_maximum(devices) * apart * math.sqrt(variance / tokens) / mean


def expected_excess(imbalance: float, num_experts: int, devices: int) -> float:
    """How far the fullest device lies above the mean, by the formula at the top of the file."""
    if devices == 1:
        return 0.0
    per_device = max(1.0, num_experts / devices)
    return imbalance * math.sqrt(math.pi / 2) / math.sqrt(per_device) * expected_maximum(devices)


def expected_maximum(numbers: int) -> float:
    """The mean of the largest of so many independent standard normal numbers.

    The trapezoidal rule on a fine grid: for a smooth density that vanishes at both ends it is right
    to rounding, and needs no package that would take a second to load.
    """
    places = (-10 + _GRID_STEP * n for n in range(round(20 / _GRID_STEP) + 1))
    return _GRID_STEP * math.fsum(
        x * numbers * _normal_density(x) * (math.erfc(-x / math.sqrt(2)) / 2) ** (numbers - 1)
        for x in places
    )


def check_imbalance(imbalance: float) -> None:
    """Refuse what no loads can have."""
    if not 0 <= imbalance < math.inf:
        raise ValueError(
            "imbalance is mean |load - target| / target, finite and not negative, but "
            f"{imbalance} was given"
        )


def _normal_density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
