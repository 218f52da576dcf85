"""Advice: the update rate from theory, read off a few recorded batches, without training again."""
