"""How many experts lie above v: the Poisson-binomial law with one or two of them left out, for all
of them at once.

At a point v let a_j = P(expert j lies above v) and b_j = 1 - a_j. The number above has generating
polynomial

    prod_j (b_j + a_j z),

of which only the coefficients below z^K matter. Leaving out an expert by dividing by its factor
loses digits; here nothing is ever divided or subtracted. What is left out lies between a product
over the experts before it and one over those after it, so with suffix products kept and prefix
products grown, one expert costs O(K) and a pair O(K): for each k the product without k is grown
along l = k+1, k+2, ... All terms are positive, so every result has full relative accuracy.

Arrays are (E, n), n the points. Kernels take them in blocks of points, which the compiler turns
into vector instructions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from equipoise.optimum.arrays import Floats

BLOCK = 16


@njit(cache=True, fastmath={"contract", "nsz"})
def _multiply_factor(product: Floats, below: Floats, above: Floats) -> None:
    """product (K, BLOCK) times (b + a z), in place, powers from K on dropped."""
    for r in range(product.shape[0] - 1, 0, -1):
        for i in range(BLOCK):
            product[r, i] = product[r, i] * below[i] + product[r - 1, i] * above[i]
    for i in range(BLOCK):
        product[0, i] *= below[i]


@njit(cache=True)
def _suffix_products(below: Floats, above: Floats, start: int, K: int) -> Floats:
    """(E+1, K, BLOCK): the product over the experts from k on."""
    E = below.shape[0]
    products = np.zeros((E + 1, K, BLOCK))
    products[E, 0, :] = 1.0
    for k in range(E - 1, -1, -1):
        products[k] = products[k + 1]
        _multiply_factor(
            products[k], below[k, start : start + BLOCK], above[k, start : start + BLOCK]
        )
    return products


@njit(cache=True)
def chosen_if_at(below: Floats, above: Floats, K: int) -> Floats:
    """(E, n): P(at most K - 1 of the others lie above v), for each expert."""
    E, n = below.shape
    result = np.empty((E, n))
    for start in range(0, n, BLOCK):
        suffixes = _suffix_products(below, above, start, K)
        for k in range(E + 1):  # from powers to "at most"
            for r in range(1, K):
                suffixes[k, r] += suffixes[k, r - 1]
        prefix = np.zeros((K, BLOCK))
        prefix[0, :] = 1.0
        for k in range(E):
            total = np.zeros(BLOCK)
            for r in range(K):
                total += prefix[r] * suffixes[k + 1, K - 1 - r]
            result[k, start : start + BLOCK] = total
            _multiply_factor(
                prefix, below[k, start : start + BLOCK], above[k, start : start + BLOCK]
            )
    return result


@njit(cache=True)
def boundary_total(density: Floats, below: Floats, above: Floats, K: int) -> Floats:
    """(n): sum over pairs k < l of density_k density_l P(exactly K - 1 others above v).

    In O(E K): grown with the number of densities taken so far, 0, 1 or 2, as a second index.
    """
    E, n = below.shape
    result = np.empty(n)
    for start in range(0, n, BLOCK):
        stop = start + BLOCK
        none, one, two = np.zeros((K, BLOCK)), np.zeros((K, BLOCK)), np.zeros((K, BLOCK))
        none[0, :] = 1.0
        for k in range(E):
            height = density[k, start:stop]
            _multiply_factor(two, below[k, start:stop], above[k, start:stop])
            two += one * height
            _multiply_factor(one, below[k, start:stop], above[k, start:stop])
            one += none * height
            _multiply_factor(none, below[k, start:stop], above[k, start:stop])
        result[start:stop] = two[K - 1]
    return result


@njit(cache=True, fastmath={"contract", "nsz", "reassoc"})
def boundary_pairs(
    density: Floats, below: Floats, above: Floats, weights: Floats, K: int
) -> Floats:
    """(E, E): sum over points of weight density_k density_l P(exactly K - 1 others above v)."""
    E, n = below.shape
    pairs = np.zeros((E, E))
    for start in range(0, n, BLOCK):
        stop = start + BLOCK
        suffixes = _suffix_products(below, above, start, K)
        prefix = np.zeros((K, BLOCK))
        prefix[0, :] = 1.0
        without = np.empty((K, BLOCK))
        total = np.empty(BLOCK)
        for k in range(E):
            here = weights[start:stop] * density[k, start:stop]
            if here.any():
                without[:] = prefix
                for other in range(k + 1, E):
                    total[:] = 0.0
                    for r in range(K):
                        for i in range(BLOCK):
                            total[i] += without[r, i] * suffixes[other + 1, K - 1 - r, i]
                    for i in range(BLOCK):
                        pairs[k, other] += here[i] * density[other, start + i] * total[i]
                    _multiply_factor(without, below[other, start:stop], above[other, start:stop])
            _multiply_factor(prefix, below[k, start:stop], above[k, start:stop])
    return pairs + pairs.T
