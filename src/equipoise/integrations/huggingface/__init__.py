"""Balance a Hugging Face model: `equipoise.balance(model, ...)`."""

from equipoise.integrations.huggingface.balancing import Balancing, balance
from equipoise.integrations.huggingface.routers import find_routers

__all__ = ["Balancing", "balance", "find_routers"]
