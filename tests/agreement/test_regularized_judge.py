"""Regularised allocation against HiGHS: its prices find the value of the program it stands for."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse import bmat, csr_matrix, kron
from scipy.sparse import eye as identity

import equipoise

E, K, T = 6, 2, 60


def program_value(scores, weight, shares):
    """max sum gamma x - weight T z, K experts a token, A_k <= z L_k; x in [0, 1]."""
    tokens = kron(identity(T), np.ones((1, E)))
    loads = kron(np.ones((1, T)), identity(E))
    answer = linprog(
        np.append(-scores.flatten(), weight * T),
        A_eq=bmat([[tokens, csr_matrix((T, 1))]]),
        b_eq=np.full(T, K),
        A_ub=bmat([[loads, csr_matrix(-K * T * shares[:, None])]]),
        b_ub=np.zeros(E),
        bounds=[(0, 1)] * (T * E) + [(0, None)],
        method="highs",
    )
    assert answer.success, answer.message
    return -answer.fun


def dual_value(scores, shift, weight, shares):
    """sum of the K largest of gamma - q, prices q = weight/K - shift: z leaves the program."""
    prices = weight / K - shift
    assert prices.min() > 0
    assert shares @ prices == pytest.approx(weight / K, rel=1e-4)
    return np.sort(scores - prices, axis=1)[:, -K:].sum()


@pytest.mark.parametrize("weight", [0.02, 0.1, 1.0])
@pytest.mark.parametrize("target", [None, [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
def test_prices_find_the_programs_value(weight, target):
    rng = torch.Generator().manual_seed(0)
    popularity = torch.linspace(1.0, -1.0, E)
    scores = (torch.randn(T, E, generator=rng) + popularity).softmax(-1)
    options = {"weight": weight, "target": target, "update_rate": 0.02}
    rule = equipoise.balancer("regularized", E, top_k=K, **options)
    shares = np.array(target or [1.0] * E) / sum(target or [1.0] * E)
    best = np.inf
    for _ in range(1500):
        best = min(best, dual_value(scores.numpy(), rule.shift.numpy(), weight, shares))
        rule.update(rule.tally(scores, rule.route(scores)))
    wanted = program_value(scores.double().numpy(), weight, shares)
    assert wanted - 1e-3 <= best <= wanted + 0.005 * abs(wanted) + 0.01


def test_a_small_weight_buys_little_balance():
    scores = (torch.randn(512, E, generator=torch.Generator().manual_seed(1)) * 2).softmax(-1)
    scores[:, 0] += 0.3
    largest = []
    for weight in (0.01, 1.0):
        rule = equipoise.balancer("regularized", E, top_k=K, weight=weight, update_rate=0.02)
        for _ in range(600):
            rule.update(rule.tally(scores, rule.route(scores)))
        largest.append(int(rule.route(scores).loads.max()))
    assert largest[1] < 1.1 * 512 * K / E < 0.8 * largest[0]
