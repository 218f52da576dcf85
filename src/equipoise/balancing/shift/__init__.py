"""Balancers that move one number per expert: direction, parts, geometry."""
