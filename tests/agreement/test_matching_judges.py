"""Base against judges that know nothing of it: HiGHS on the linear program, and scipy's assignment
solver.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import eye as identity
from scipy.sparse import kron, vstack

from equipoise.balancing.batch.base import Base
from equipoise.balancing.batch.expert_choice import ExpertChoice


def optimum(scores, top_k, least, most):
    """The greatest total score with K experts per token and loads in [least, most]. The program's
    corners are whole.
    """
    num_tokens, num_experts = scores.shape
    rows = kron(identity(num_tokens), np.ones((1, num_experts)))
    columns = kron(np.ones((1, num_tokens)), identity(num_experts))
    answer = linprog(
        -scores.double().flatten().numpy(),
        A_eq=rows,
        b_eq=np.full(num_tokens, top_k),
        A_ub=vstack((columns, -columns)),
        b_ub=np.concatenate((most, -least)),
        bounds=(0, 1),
        method="highs",
    )
    assert answer.success, answer.message
    return -answer.fun


def total(scores, balancer):
    routing = balancer.route(scores)
    return float(scores.double().gather(1, routing.experts).sum())


@st.composite
def problems(draw):
    num_experts = draw(st.integers(2, 8))
    top_k = draw(st.integers(1, num_experts))
    num_tokens = draw(st.integers(1, 40))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    scores = torch.randn(num_tokens, num_experts, generator=rng) + 2 * torch.randn(
        num_experts, generator=rng
    )
    rounded = draw(st.booleans())  # to three levels or so: ties everywhere
    weights = draw(
        st.none()
        | st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=num_experts, max_size=num_experts)
    )
    if weights is not None and max(weights) * top_k > sum(weights):
        weights = None
    return scores.round() if rounded else scores.softmax(-1), top_k, weights


@settings(max_examples=150, deadline=None)
@given(problems())
def test_base_reaches_the_optimum(problem):
    scores, top_k, weights = problem
    balancer = Base(scores.shape[1], top_k, target=weights)
    wanted = balancer.target.loads(torch.tensor(len(scores) * top_k)).numpy()
    best = optimum(scores, top_k, np.floor(wanted + 1e-9), np.ceil(wanted - 1e-9))
    bound = (
        (len(scores) * top_k + scores.shape[1])
        * balancer.tolerance
        * float(scores.max() - scores.min())
    )
    assert best - bound - 1e-6 <= total(scores, balancer) <= best + 1e-6


def test_without_ties_it_is_exact():
    rng = torch.Generator().manual_seed(0)
    scores = (torch.randn(300, 12, generator=rng) + torch.randn(12, generator=rng)).softmax(-1)
    even = np.full(12, 75)
    assert total(scores, Base(12, 3)) == pytest.approx(optimum(scores, 3, even, even), abs=1e-9)


def test_one_expert_each_agrees_with_scipy():
    """K = 1 is the assignment problem with L copies of every expert."""
    rng = torch.Generator().manual_seed(1)
    scores = (torch.randn(240, 8, generator=rng) + torch.randn(8, generator=rng)).sigmoid()
    copies = scores.double().repeat_interleave(30, dim=1).numpy()
    tokens, places = linear_sum_assignment(copies, maximize=True)
    experts = Base(8, 1).route(scores).experts.squeeze(1)
    assert experts.tolist() == (places[tokens.argsort()] // 30).tolist()


def test_expert_choice_scores_no_less():
    """Experts choosing freely solve the program without the tokens' constraint: an upper bound."""
    rng = torch.Generator().manual_seed(2)
    scores = (torch.randn(320, 16, generator=rng) + torch.randn(16, generator=rng)).softmax(-1)
    freely = float(ExpertChoice(16, 4).route(scores).gates.double().sum())
    assert freely == pytest.approx(float(scores.double().topk(80, dim=0).values.sum()), abs=1e-5)
    assert freely >= total(scores, Base(16, 4))
