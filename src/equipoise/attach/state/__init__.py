"""The balancers' state beside a model."""
