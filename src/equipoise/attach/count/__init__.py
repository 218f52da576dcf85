"""Count what the routers of a model choose, and give them a shift."""
