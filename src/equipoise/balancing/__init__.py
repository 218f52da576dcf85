"""Balancers: rules that move the shift after every step so that the experts' loads become even."""

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.presets import balancer, balancers
from equipoise.balancing.shift.dual import Dual
from equipoise.balancing.shift.settled import settled

__all__ = ["Balancer", "Dual", "balancer", "balancers", "settled"]
