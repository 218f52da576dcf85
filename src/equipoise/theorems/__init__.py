"""The paper's numbered statements as checks that run: each takes a problem, a run or a trace and
gives a Verdict.
"""

from equipoise.theorems.verdict import Verdict
from equipoise.theorems.verify import verify

__all__ = ["Verdict", "verify"]
