"""One dual function, several ways down: sign is SignSGD on it, u/n is SGD, quantile a coordinate
step, mirror mirror descent.

f(p) = sum_i (sum of the K largest of gamma_i + p) - L sum p is written here with torch.topk and
autograd, and shares no line with the package.
"""

import pytest
import torch

import equipoise
from equipoise.balancing.shift.quantile import exact_quantile_move
from equipoise.routing import route

T, E, K = 240, 12, 3
L = T * K / E


def batch(seed):
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(T, E, generator=rng) + torch.linspace(0, 1.5, E)).softmax(-1)


def dual(scores, shift):
    return (scores.double() + shift).topk(K).values.sum() - L * shift.sum()


def step_of(balancer, scores):
    routing = route(scores, K, choose_by=balancer.adjust(scores))
    balancer.update(balancer.tally(scores, routing))


def descend(optimizer_of, schedule, transform, steps=20):
    """An ordinary torch optimiser on the dual."""
    shift = torch.zeros(E, dtype=torch.float64, requires_grad=True)
    optimizer = optimizer_of(shift)
    for n in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = schedule(n)
        optimizer.zero_grad()
        dual(batch(n), shift).backward()
        shift.grad.copy_(transform(shift.grad))
        optimizer.step()
    return shift.detach()


def sgd(shift):
    return torch.optim.SGD([shift], lr=1.0)


@pytest.mark.parametrize(
    ("name", "options", "schedule", "transform"),
    [
        ("deepseek", {"update_rate": 1e-3}, lambda n: 1e-3, torch.sign),
        ("moonlight", {"update_rate": 1e-3}, lambda n: 1e-3, lambda g: g.sign() - g.sign().mean()),
        ("proportional", {"update_rate": 1e-2}, lambda n: 1e-2 / L, lambda g: g),
        ("inverse", {"update_rate": 1e-4, "unit": "counts"}, lambda n: 1e-4 / n, lambda g: g),
        ("inverse", {"update_rate": 0.3}, lambda n: 0.3 / n / T, lambda g: g),
        ("inverse_sqrt", {"update_rate": 0.3}, lambda n: 0.3 / n**0.5 / T, lambda g: g),
    ],
)
def test_rules_descend_the_dual(name, options, schedule, transform):
    balancer = equipoise.balancer(name, E, top_k=K, **options)
    for n in range(1, 21):
        step_of(balancer, batch(n))
    torch.testing.assert_close(
        balancer.shift.double(), descend(sgd, schedule, transform), rtol=0, atol=1e-6
    )


def test_adagrad_is_torchs():
    balancer = equipoise.balancer("adagrad", E, top_k=K, update_rate=1e-2)
    for n in range(1, 21):
        step_of(balancer, batch(n))
    judge = descend(
        lambda shift: torch.optim.Adagrad([shift], lr=1e-2, eps=0.0), lambda n: 1e-2, lambda g: g
    )
    torch.testing.assert_close(balancer.shift.double(), judge, rtol=0, atol=1e-6)


def test_smebu_follows_its_formula():
    balancer = equipoise.balancer("smebu", E, top_k=K)
    shift, memory = torch.zeros(E, dtype=torch.float64), torch.zeros(E, dtype=torch.float64)
    for n in range(1, 21):
        loads = torch.bincount((batch(n).double() + shift).topk(K).indices.flatten(), minlength=E)
        move = 5e-4 * torch.tanh(2.0 * (L - loads) / L)
        memory = 0.5 * memory + 0.5 * (move - move.mean())
        shift = shift + memory
        step_of(balancer, batch(n))
    torch.testing.assert_close(balancer.shift.double(), shift, rtol=0, atol=1e-6)


def test_mirror_minimises_its_proximal_problem():
    width, rate = 1e-2, 0.1
    balancer = equipoise.balancer("mirror", E, top_k=K, update_rate=rate, width=width)
    for n in range(1, 6):
        before = balancer.shift.double()
        loads = torch.bincount((batch(n) + balancer.shift).topk(K).indices.flatten(), minlength=E)
        step_of(balancer, batch(n))
        after = balancer.shift.double().requires_grad_()

        def bregman(x, y):
            h = lambda z: (z * (z / width).asinh() - (z**2 + width**2).sqrt()).sum()  # noqa: E731
            return h(x) - h(y) - ((y / width).asinh() * (x - y)).sum()

        slope = (loads - L) / L
        (rate * (slope * after).sum() + bregman(after, before)).backward()
        torch.testing.assert_close(
            after.grad, torch.zeros(E, dtype=torch.float64), rtol=0, atol=1e-5
        )


def test_wide_mirrors_are_flat():
    mirror = equipoise.balancer("mirror", E, top_k=K, update_rate=1e-3 / 50, width=50.0)
    flat = equipoise.balancer("proportional", E, top_k=K, update_rate=1e-3)
    for n in range(10):
        step_of(mirror, batch(n))
        step_of(flat, batch(n))
    torch.testing.assert_close(mirror.shift, flat.shift, rtol=1e-4, atol=1e-7)


def test_quantile_minimises_over_each_shift():
    """For fixed token prices y, no other p_k is better: all kinks of the piecewise linear function
    are tried.
    """
    scores = batch(0).double()
    shift = torch.linspace(0.02, -0.02, E, dtype=torch.float64)
    prices = (scores + shift).topk(K + 1).values[:, K]
    routing = route(scores, K, choose_by=scores + shift)
    balancer = equipoise.balancer("quantile", E, top_k=K)
    found = shift + exact_quantile_move(scores, routing, shift, balancer.target)
    for k in range(E):
        kinks = prices - scores[:, k]

        def value(p, k=k):
            return (scores[:, k] + p.unsqueeze(-1) - prices).clamp_min(0).sum(-1) - L * p

        assert value(found[k]) <= value(kinks).min() + 1e-9
        assert value(kinks).max() > value(found[k]) + 0.1  # the function is not flat


def test_runner_up_prices_minimise_too():
    """y_i = the (K+1)-th largest minimises K y + sum_k max(0, gamma_ik + p_k - y): the first half
    of the coordinate step.
    """
    shifted = batch(1).double()
    prices = shifted.topk(K + 1).values[:, K]
    value = lambda y: K * y + (shifted.unsqueeze(-1) - y.unsqueeze(1)).clamp_min(0).sum(1)  # noqa: E731
    best = value(shifted).min(1).values
    torch.testing.assert_close(value(prices.unsqueeze(1)).squeeze(1), best, rtol=0, atol=1e-12)
    torch.testing.assert_close(best, shifted.topk(K).values.sum(1), rtol=0, atol=1e-12)
