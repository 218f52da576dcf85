"""The assignment problem behind balancing: its exact optimum, and how far a shift is from it."""

from equipoise.optimum.evaluate import Evaluation, evaluate
from equipoise.optimum.problem import Problem
from equipoise.optimum.solve import Solution, solve

__all__ = ["Evaluation", "Problem", "Solution", "evaluate", "solve"]
