"""Streams of scores: synthetic, recorded, and the catalogue of their names."""
