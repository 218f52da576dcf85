"""Traces made of random numbers, the same ones every time."""

import numpy as np

from equipoise.trace import TraceWriter

E, K = 4, 2


def step_of(n, rows=3):
    rng = np.random.default_rng(n)
    shift = rng.normal(size=E).astype(np.float32)
    return {
        "shift": shift,
        "shift_after": shift + np.float32(1e-3),
        "loads": rng.multinomial(20, np.full(E, 1 / E)),
        "step_size": rng.random(E),
        "unit": "counts",
        "scores": rng.random((rows, E)).astype(np.float32),
    }


def written(folder, steps, **options):
    writer = TraceWriter(folder, top_k=K, layers=["a", "b"], **options)
    for n in steps:
        for layer in (0, 1):
            writer.append(n, layer, **step_of(2 * n + layer, rows=n % 3))
    return writer
