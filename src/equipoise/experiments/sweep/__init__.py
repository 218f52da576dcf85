"""Searches: every training of a grid, and the best setting of each scheme."""
