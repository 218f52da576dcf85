"""Equipoise keeps the experts of a sparse Mixture-of-Experts evenly loaded without an auxiliary
loss.

Names are loaded when first used, so `import equipoise` costs milliseconds and pulls in neither
torch nor numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._moved import keep_old_names
from equipoise.storage.lazy_names import lazy_names

__version__ = "0.2.0"

# public name -> the module that holds it
_HOMES = {
    "Groups": "equipoise.routing",
    "Routing": "equipoise.routing",
    "Tally": "equipoise.routing",
    "changed_choices": "equipoise.routing",
    "check_scores": "equipoise.routing",
    "churn": "equipoise.routing",
    "device_loads": "equipoise.routing",
    "dropped_choices": "equipoise.routing",
    "dropped_share": "equipoise.routing",
    "kernels": "equipoise.routing.kernels.backends",
    "idle_share": "equipoise.routing",
    "load_metrics": "equipoise.routing",
    "metrics": "equipoise.routing",
    "reduce": "equipoise.routing",
    "route": "equipoise.routing",
    "score_function": "equipoise.routing",
    "sequence_loads": "equipoise.routing",
    "Trace": "equipoise.trace",
    "TraceWriter": "equipoise.trace",
    "Verdict": "equipoise.theorems",
    "verify": "equipoise.theorems",
    "Solution": "equipoise.optimum",
    "balance_costs": "equipoise.optimum",
    "evaluate": "equipoise.optimum",
    "solve": "equipoise.optimum",
    "LayerBalancer": "equipoise.layers",
    "MoE": "equipoise.layers",
    "Router": "equipoise.layers",
    "drop": "equipoise.layers",
    "step": "equipoise.layers",
    "DeepSeekMoE": "equipoise.model",
    "preset": "equipoise.training",
    "train": "equipoise.training",
    "Balancer": "equipoise.balancing",
    "balancer": "equipoise.balancing",
    "balancers": "equipoise.balancing",
    "settled": "equipoise.balancing",
    "TrainerCallback": "equipoise.attach.trainer_callback",
    "balance": "equipoise.attach",
    "log_balance": "equipoise.integrations.trackers",
    "record_experts": "equipoise.attach.replay.own_layers",
    "replay_experts": "equipoise.attach.replay.own_layers",
    "follow": "equipoise.attach",
    # the verbs of the command line; those whose name is a package's have a verb in front
    "agree": "equipoise.attach.replay.agreement",
    "advise": "equipoise.arena.advice.advise",
    "compare": "equipoise.experiments.compare",
    "demo": "equipoise.arena.demo",
    "doctor": "equipoise.integrations.huggingface.doctor",
    "export": "equipoise.integrations.huggingface.export",
    "place": "equipoise.placement",
    "plan": "equipoise.experiments.plan",
    "policy_mismatch": "equipoise.attach.replay.policy_mismatch",
    "record": "equipoise.integrations.record",
    "router_precision": "equipoise.integrations.precision.router_precision",
    "run_arena": "equipoise.arena.run_arena",
    "simulate": "equipoise.simulation.simulate",
    "step_time": "equipoise.experiments.step_time",
    "sweep": "equipoise.experiments.sweep.sweep",
    "tune": "equipoise.arena.tune",
    "watch_runs": "equipoise.watch.watch_runs",
    "write_report": "equipoise.report.write_report",
}

__all__ = [
    "Balancer",
    "DeepSeekMoE",
    "Groups",
    "LayerBalancer",
    "MoE",
    "Router",
    "Routing",
    "Solution",
    "Tally",
    "Trace",
    "TraceWriter",
    "TrainerCallback",
    "Verdict",
    "advise",
    "agree",
    "balance",
    "balance_costs",
    "balancer",
    "balancers",
    "changed_choices",
    "check_scores",
    "churn",
    "compare",
    "demo",
    "device_loads",
    "doctor",
    "drop",
    "dropped_choices",
    "dropped_share",
    "evaluate",
    "export",
    "follow",
    "idle_share",
    "kernels",
    "load_metrics",
    "log_balance",
    "metrics",
    "place",
    "plan",
    "policy_mismatch",
    "preset",
    "record",
    "record_experts",
    "reduce",
    "replay_experts",
    "route",
    "router_precision",
    "run_arena",
    "score_function",
    "sequence_loads",
    "settled",
    "simulate",
    "solve",
    "step",
    "step_time",
    "sweep",
    "train",
    "tune",
    "verify",
    "watch_runs",
    "write_report",
]

if TYPE_CHECKING:
    from equipoise.arena.advice.advise import advise
    from equipoise.arena.demo import demo
    from equipoise.arena.run_arena import run_arena
    from equipoise.arena.tune import tune
    from equipoise.attach import follow
    from equipoise.attach.balance import balance
    from equipoise.attach.replay.agreement import agree
    from equipoise.attach.replay.own_layers import record_experts, replay_experts
    from equipoise.attach.replay.policy_mismatch import policy_mismatch
    from equipoise.attach.trainer_callback import TrainerCallback
    from equipoise.balancing import Balancer, balancers, settled
    from equipoise.balancing.resolve import balancer
    from equipoise.experiments.compare import compare
    from equipoise.experiments.plan import plan
    from equipoise.experiments.step_time import step_time
    from equipoise.experiments.sweep.sweep import sweep
    from equipoise.integrations.huggingface.doctor import doctor
    from equipoise.integrations.huggingface.export import export
    from equipoise.integrations.precision.router_precision import router_precision
    from equipoise.integrations.record import record
    from equipoise.integrations.trackers import log_balance
    from equipoise.layers import LayerBalancer, MoE, Router, drop, step
    from equipoise.model import DeepSeekMoE
    from equipoise.optimum import Solution
    from equipoise.optimum.balance_costs import balance_costs
    from equipoise.optimum.evaluate import evaluate
    from equipoise.optimum.solve import solve
    from equipoise.placement.place import place
    from equipoise.report.write_report import write_report
    from equipoise.routing import (
        Groups,
        Routing,
        Tally,
        changed_choices,
        check_scores,
        churn,
        device_loads,
        dropped_choices,
        dropped_share,
        idle_share,
        load_metrics,
        score_function,
        sequence_loads,
    )
    from equipoise.routing.kernels.backends import kernels
    from equipoise.routing.metrics import metrics
    from equipoise.routing.reduce import reduce
    from equipoise.routing.route import route
    from equipoise.simulation.simulate import simulate
    from equipoise.theorems import Verdict
    from equipoise.theorems.verify import verify
    from equipoise.trace import Trace, TraceWriter
    from equipoise.training import preset, train
    from equipoise.watch.watch_runs import watch_runs


keep_old_names()
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
