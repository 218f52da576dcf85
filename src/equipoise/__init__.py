"""Equipoise keeps the experts of a sparse Mixture-of-Experts evenly loaded without an auxiliary
loss.

Names are loaded when first used, so `import equipoise` costs milliseconds and pulls in neither
torch nor numba.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise._moved import keep_old_names

__version__ = "0.1.0"

# public name -> the module that holds it
_HOMES = {
    "Groups": "equipoise.routing",
    "Routing": "equipoise.routing",
    "Tally": "equipoise.routing",
    "check_scores": "equipoise.routing",
    "idle_share": "equipoise.routing",
    "metrics": "equipoise.routing",
    "reduce": "equipoise.routing",
    "route": "equipoise.routing",
    "score_function": "equipoise.routing",
    "Trace": "equipoise.trace",
    "TraceWriter": "equipoise.trace",
    "Verdict": "equipoise.theorems",
    "verify": "equipoise.theorems",
    "Solution": "equipoise.optimum",
    "evaluate": "equipoise.optimum",
    "solve": "equipoise.optimum",
    "MoE": "equipoise.layers",
    "Router": "equipoise.layers",
    "DeepSeekMoE": "equipoise.model",
    "preset": "equipoise.training",
    "train": "equipoise.training",
    "Balancer": "equipoise.balancing",
    "balancer": "equipoise.balancing",
    "balancers": "equipoise.balancing",
    "settled": "equipoise.balancing",
    "balance": "equipoise.attach",
    # the verbs of the command line; those whose name is a package's have a verb in front
    "compare": "equipoise.experiments.compare",
    "demo": "equipoise.arena.demo",
    "doctor": "equipoise.integrations.huggingface.doctor",
    "plan": "equipoise.experiments.plan",
    "record": "equipoise.integrations.record",
    "run_arena": "equipoise.arena.run_arena",
    "sweep": "equipoise.experiments.sweep.sweep",
    "tune": "equipoise.arena.tune",
    "write_report": "equipoise.report.write_report",
}

__all__ = [
    "Balancer",
    "DeepSeekMoE",
    "Groups",
    "MoE",
    "Router",
    "Routing",
    "Solution",
    "Tally",
    "Trace",
    "TraceWriter",
    "Verdict",
    "balance",
    "balancer",
    "balancers",
    "check_scores",
    "compare",
    "demo",
    "doctor",
    "evaluate",
    "idle_share",
    "metrics",
    "plan",
    "preset",
    "record",
    "reduce",
    "route",
    "run_arena",
    "score_function",
    "settled",
    "solve",
    "sweep",
    "train",
    "tune",
    "verify",
    "write_report",
]

if TYPE_CHECKING:
    from equipoise.arena.demo import demo
    from equipoise.arena.run_arena import run_arena
    from equipoise.arena.tune import tune
    from equipoise.attach import balance
    from equipoise.balancing import Balancer, balancer, balancers, settled
    from equipoise.experiments.compare import compare
    from equipoise.experiments.plan import plan
    from equipoise.experiments.sweep.sweep import sweep
    from equipoise.integrations.huggingface.doctor import doctor
    from equipoise.integrations.record import record
    from equipoise.layers import MoE, Router
    from equipoise.model import DeepSeekMoE
    from equipoise.optimum import Solution, evaluate, solve
    from equipoise.report.write_report import write_report
    from equipoise.routing import (
        Groups,
        Routing,
        Tally,
        check_scores,
        idle_share,
        metrics,
        reduce,
        route,
        score_function,
    )
    from equipoise.theorems import Verdict, verify
    from equipoise.trace import Trace, TraceWriter
    from equipoise.training import preset, train


keep_old_names()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # the next access is an ordinary one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
