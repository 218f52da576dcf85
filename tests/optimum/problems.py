"""Small problems to try things on."""

import numpy as np


def softmax_scores(tokens, experts, seed=0, dtype=np.float32, skew=0.7):
    """Scores of a router that prefers some experts: Gaussian logits, a mean per expert."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(tokens, experts)) + skew * draw.normal(size=experts)
    scores = np.exp(logits)
    return (scores / scores.sum(axis=1, keepdims=True)).astype(dtype)


def allowed_target(draw, tokens, experts, top_k):
    """Loads that some assignment has: the loads of a random one, more or less lopsided."""
    popular = draw.permutation(experts)[:top_k]
    rows = [
        popular if draw.random() < 0.5 else draw.permutation(experts)[:top_k] for _ in range(tokens)
    ]
    return np.bincount(np.concatenate(rows), minlength=experts)
