"""Find the routers of a model and learn how they choose."""
