"""Top-K on the CPU: kernels in numba on numpy arrays, without torch.

`optimum/` searches with them and `routing/kernels/` routes with them, so that the choice and its
rule for ties stand in one place: among equal shifted scores the lowest expert comes first.
"""
