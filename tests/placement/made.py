"""Loads to place, and every placement there is of a small layer."""

import itertools

import numpy as np


def made_loads(batches, experts, seed=0, *, layers=1, skew=0.7, topics=3):
    """(batches, layers, experts) whole numbers: popular experts, and topics that ask for others."""
    rng = np.random.default_rng(seed)
    popularity = skew * rng.standard_normal((layers, experts))
    topic = 0.7 * rng.standard_normal((topics, layers, experts))
    share = np.exp(popularity + topic[rng.integers(topics, size=batches)])
    return rng.multinomial(40 * experts, share / share.sum(-1, keepdims=True))


def every_placement(cluster):
    """All slots (D, S) that the cluster allows, up to the order of devices and of slots."""
    places = range(cluster.slots_per_device)
    held = itertools.combinations_with_replacement(range(cluster.num_experts), len(places))
    for devices in itertools.combinations_with_replacement(list(held), cluster.devices):
        if cluster.allows(np.array(devices)):
            yield np.array(devices)
