"""The page of a comparison or a training."""
