"""Balancers: rules that move the shift after every step so that the experts' loads become even."""

from equipoise.balancing import presets as presets  # importing it registers the methods
from equipoise.balancing.balancer import Balancer
from equipoise.balancing.resolve import balancer, balancers, resolve_balancer
from equipoise.balancing.shift.dual import Dual
from equipoise.balancing.shift.moving_quantile import MovingQuantile
from equipoise.balancing.shift.settled import settled
from equipoise.balancing.spec import MethodSpec, method_spec, method_specs

__all__ = [
    "Balancer",
    "Dual",
    "MethodSpec",
    "MovingQuantile",
    "balancer",
    "balancers",
    "method_spec",
    "method_specs",
    "resolve_balancer",
    "settled",
]
