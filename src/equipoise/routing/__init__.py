"""From scores to chosen experts, and what is counted on the way."""

from equipoise.routing.checks import check_scores
from equipoise.routing.metrics import idle_share, load_metrics, metrics
from equipoise.routing.reduce import reduce
from equipoise.routing.route import Groups, Routing, route
from equipoise.routing.score_functions import score_function
from equipoise.routing.tally import Tally

__all__ = [
    "Groups",
    "Routing",
    "Tally",
    "check_scores",
    "idle_share",
    "load_metrics",
    "metrics",
    "reduce",
    "route",
    "score_function",
]
