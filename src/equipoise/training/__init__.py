"""Training the model: data, the loop, and what survives when a machine does not."""
