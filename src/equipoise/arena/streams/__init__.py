"""Streams of scores: synthetic, recorded, and the catalogue of their names."""

from equipoise.arena.streams.drifting import DriftingLogits
from equipoise.arena.streams.stream import Batch, Stream, sampling_floor

__all__ = ["Batch", "DriftingLogits", "Stream", "sampling_floor"]
