"""Balance a model that people already have, from Hugging Face or of the same structure.

    balancing = equipoise.balance(model, "deepseek", update_rate=1e-3)

find/ finds its routers and learns how they choose; count/ counts what they choose, and gives them a
shift; state/ saves what the balancers remember. balance.py is the entrance.
"""

from equipoise.attach.balance import Balancing, balance
from equipoise.attach.find.routers import find_routers
from equipoise.attach.optimizers import follow

__all__ = ["Balancing", "balance", "find_routers", "follow"]
