"""From scores to chosen experts, and what is counted on the way."""

from equipoise.routing.checks import check_scores
from equipoise.routing.measures.capacity import dropped_choices, dropped_share
from equipoise.routing.measures.churn import changed_choices, churn
from equipoise.routing.measures.devices import device_loads, idle_share
from equipoise.routing.measures.sequences import sequence_loads
from equipoise.routing.metrics import load_metrics, metrics
from equipoise.routing.reduce import reduce
from equipoise.routing.route import Groups, Routing, route
from equipoise.routing.score_functions import score_function
from equipoise.routing.tally import Tally

__all__ = [
    "Groups",
    "Routing",
    "Tally",
    "changed_choices",
    "check_scores",
    "churn",
    "device_loads",
    "dropped_choices",
    "dropped_share",
    "idle_share",
    "load_metrics",
    "metrics",
    "reduce",
    "route",
    "score_function",
    "sequence_loads",
]
