"""Checkpoints of Hugging Face models: looked at, and recorded."""
