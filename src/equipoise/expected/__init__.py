"""The expected dual of the assignment program: laws of scores, exact integrals, and its optimum."""
