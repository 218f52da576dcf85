"""The page of a simulation: what every balancer's first steps cost on a cluster."""
