"""The assignment problem behind balancing: its exact optimum, and how far a shift is from it."""

from equipoise.optimum.balance_costs import BalanceCost, balance_costs
from equipoise.optimum.evaluate import Evaluation, evaluate
from equipoise.optimum.problem import Problem
from equipoise.optimum.solve import Solution, solve

__all__ = [
    "BalanceCost",
    "Evaluation",
    "Problem",
    "Solution",
    "balance_costs",
    "evaluate",
    "solve",
]
