"""Runs written as a training writes them, without one."""

import json

import numpy as np

from equipoise.trace import TraceWriter

E, K, T = 8, 2, 64


def row_of(step, layers=2, level=0.5):
    levels = [level / step + n for n in range(layers)]
    return {
        "kind": "train",
        "step": step,
        "loss": 5 / step,
        "tokens": step * T,
        "tokens_per_second": 100.0,
        "idle_share": 0.25,
        "imbalance": sum(levels) / layers,
        "layers": {"imbalance": levels, "max_violation": [2 * each for each in levels]},
    }


def evaluation_of(step):
    return {
        "kind": "validation",
        "step": step,
        "loss": 4.5,
        "imbalance": 0.4,
        "floor": 0.1,
        "layers": {"imbalance": [0.4, 0.4], "max_violation": [1.0, 1.0]},
    }


def add_rows(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def record_of(step):
    rng = np.random.default_rng(step)
    return {
        "shift": np.full(E, step * 1e-3, np.float32),
        "shift_after": np.full(E, (step + 1) * 1e-3, np.float32),
        "loads": rng.multinomial(T * K, np.full(E, 1 / E)),
        "scores": rng.random((3, E)).astype(np.float32),
    }


def add_records(writer, steps, layers=("a", "b")):
    for step in steps:
        for layer in layers:
            writer.append(step, layer, **record_of(step))


def new_trace(folder, steps=(), layers=("a", "b")):
    about = {"balancer": "deepseek", "update_rate": 1e-3}
    writer = TraceWriter(folder, top_k=K, layers=list(layers), about=about)
    add_records(writer, steps, layers)
    return writer


def made_run(folder, steps=10):
    """A training that has stopped after some steps."""
    add_rows(folder, [row_of(step) for step in range(1, steps + 1)])
    add_rows(folder, [evaluation_of(steps)])
    new_trace(folder / "trace", range(1, steps + 1)).close()
    (folder / "config.yaml").write_text("balancer: deepseek\nsteps: 40\npreset: tiny\nseed: 3\n")
    return folder
