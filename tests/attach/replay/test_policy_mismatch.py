"""k3 and extreme ratios, against decimal arithmetic of many digits."""

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise

getcontext().prec = 150
logs = st.lists(st.floats(-30, 30).filter(lambda x: not 0 < abs(x) < 1e-60), min_size=1, max_size=8)


@given(logs)
def test_k3_is_exact_and_never_negative(differences):
    found = equipoise.policy_mismatch(differences, np.zeros(len(differences)))
    terms = [Decimal(each).exp() - 1 - Decimal(each) for each in differences]
    wanted = float(sum(terms) / len(terms))
    assert found.k3 == pytest.approx(wanted, rel=1e-9, abs=1e-300)
    assert found.k3 >= 0
    assert found.k1 == pytest.approx(-np.mean(differences))


@pytest.mark.parametrize("difference", [1e-9, 1e-6, 9e-4, 1.1e-3])
def test_small_differences_keep_their_digits(difference):
    wanted = float(Decimal(difference).exp() - 1 - Decimal(difference))
    assert equipoise.policy_mismatch([difference], [0.0]).k3 == pytest.approx(wanted, rel=1e-8)


def test_it_estimates_the_divergence_of_the_sampling_policy():
    """KL(q || p) of two categorical laws, by tokens drawn from q."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    tokens = torch.multinomial(q, 200_000, True, generator=torch.Generator().manual_seed(0))
    found = equipoise.policy_mismatch(p.log()[tokens], q.log()[tokens])
    assert found.k3 == pytest.approx(float((q * (q / p).log()).sum()), rel=0.02)
    assert found.k1 == pytest.approx(found.k3, rel=0.02)
    # expert 0 has a ratio of 2.5
    assert found.extreme_share == pytest.approx(0.2, abs=0.01)
    assert found.largest_ratio == pytest.approx(2.5)


def test_only_what_counts_is_compared():
    trainer, engine = torch.tensor([[0.0, -1.0], [-5.0, 0.0]]), torch.zeros(2, 2)
    counted = torch.tensor([[True, True], [False, True]])
    found = equipoise.policy_mismatch(trainer, engine, counted)
    assert found.tokens == 3
    assert found.largest_ratio == pytest.approx(math.e)
    assert found.extreme_share == pytest.approx(1 / 3)
    assert equipoise.policy_mismatch(trainer, engine, counted, extreme=3).extreme_share == 0


@pytest.mark.parametrize(
    ("trainer", "engine", "more", "said"),
    [
        ([0.0], [0.0, 0.0], {}, r"shape \(1,\) and \(2,\)"),
        ([0.0], [0.0], {"counted": [False]}, "no token is compared"),
        ([0.0], [0.0], {"counted": [[True]]}, "counted has shape"),
        ([0.0, -math.inf], [0.0, 0.0], {}, "1 of 2 tokens"),
        ([0.0], [0.0], {"extreme": 1.0}, "a ratio above 1"),
    ],
)
def test_mistakes_are_explained(trainer, engine, more, said):
    with pytest.raises(ValueError, match=said):
        equipoise.policy_mismatch(trainer, engine, **more)


def test_an_endless_ratio_is_infinite():
    assert equipoise.policy_mismatch([800.0], [0.0]).largest_ratio == math.inf
