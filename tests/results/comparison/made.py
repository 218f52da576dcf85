"""A comparison as it is kept, made of numbers: no training."""

import random

PAPER = {"update_rate": None, "validation_loss": None, "imbalance": None}
LABELS = {"none": "no balancing", "deepseek": "u/|L-A| (DeepSeek)", "curvature": "curvature"}
LEVELS = {"none": 1.1, "deepseek": 0.30, "curvature": 0.29}


def comparison(seeds=5, schemes=("none", "deepseek", "curvature"), points=30):
    """Losses that differ by noise alone, and an imbalance that no balancing makes much worse."""
    about = {
        "preset": "tiny",
        "steps": 300,
        "seeds": list(range(seeds)),
        "schemes": [
            {
                "name": name,
                "label": LABELS[name],
                "balancer": name,
                "update_rate": None,
                "paper": PAPER,
            }
            for name in schemes
        ],
        "runs": {
            f"{name}-{seed}": f"runs/{name}-{seed}" for name in schemes for seed in range(seeds)
        },
    }
    runs = [run(name, seed, points) for name in schemes for seed in range(seeds)]
    return {
        "format": "equipoise comparison rows",
        "version": 1,
        "title": "made",
        "manifest": about,
        "runs": runs,
    }


def run(name, seed, points):
    noise = random.Random(f"{name}-{seed}")
    level, common = LEVELS[name] + noise.gauss(0, 0.02), random.Random(seed).gauss(0, 0.5)
    idle = {"training_idle": level / 2, "early_idle": level / 2, "late_idle": level / 3}
    spread = {
        "training_imbalance": level,
        "early_imbalance": 1.2 * level,
        "late_imbalance": 0.8 * level,
    }
    result = {
        "validation_loss": 6 + common + noise.gauss(0, 0.01),
        "imbalance": level,
        "max_violation": 3 * level,
    }
    result |= {
        "imbalance_error": 0.004,
        "floor": 0.021,
        "validation_sequences": 64,
        "seconds": 1.0,
        **idle,
        **spread,
    }
    steps = [10 * (n + 1) for n in range(points)]
    return {
        "name": f"{name}-{seed}",
        "scheme": name,
        "seed": seed,
        "result": result,
        "measured": {
            "format": 2,
            "given_up": 0.02,
            "dual_gap": 0.01,
            "idle_share": 0.2,
            "batch_imbalance": 0.4,
        },
        "validation": [
            {"step": s, "loss": 6.0, "imbalance": level, "floor": 0.021} for s in (150, 300)
        ],
        "training": {
            "step": steps,
            "imbalance": [round(level + noise.gauss(0, 0.05), 4) for _ in steps],
            "idle_share": [None for _ in steps],
            "loss": [6.0 for _ in steps],
        },
    }
