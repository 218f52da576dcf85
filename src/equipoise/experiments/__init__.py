"""Experiments: what a run would cost, and comparisons of runs."""
