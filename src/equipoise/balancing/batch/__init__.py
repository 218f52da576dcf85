"""Balancers that solve the assignment of each batch."""
