"""Balance a Hugging Face model: `equipoise.balance(model, ...)`."""

from equipoise.attach.balance import Balancing, balance
from equipoise.attach.find.routers import find_routers

__all__ = ["Balancing", "balance", "find_routers"]
