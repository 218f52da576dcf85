"""The assignment problem behind balancing: its exact optimum, and how far a shift is from it."""

from equipoise.assignment.evaluate import Evaluation, evaluate
from equipoise.assignment.problem import Problem
from equipoise.assignment.solve import Solution, solve

__all__ = ["Evaluation", "Problem", "Solution", "evaluate", "solve"]
