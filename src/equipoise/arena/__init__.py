"""Every balancer on the same stream of scores."""
