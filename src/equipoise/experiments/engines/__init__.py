"""Where trials run: here (local.py), or on a Ray cluster (ray.py). Both bring every trial to an end, by attempt.py."""
