"""Checkpoints of Hugging Face models: looked at (doctor) and recorded.

`balance` has moved to equipoise.attach, since it balances any model; it is still found here.
"""

from equipoise.attach import Balancing, balance, find_routers

__all__ = ["Balancing", "balance", "find_routers"]
