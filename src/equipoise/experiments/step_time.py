"""step_time: how long a step takes on a cluster, and how that grows with uneven loads.

times = equipoise.step_time("deepseek-v3", "h800-2048")
times.seconds(fullest=1.2), times.table(price=2.0)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from equipoise.costs.cluster import Cluster, find_cluster
from equipoise.costs.step_time import StepTime, time_of_step
from equipoise.costs.workload import PUBLISHED, Workload
from equipoise.experiments.plan import training_workload
from equipoise.storage.suggestions import did_you_mean
from equipoise.training.config import TRAINING_PRESETS, preset


def step_time(
    model: str | Workload,
    cluster: str | Cluster,
    *,
    expert_parallel: int | None = None,
    hidden: float = 0.0,
    utilization: float | None = None,
    **changes: Any,
) -> StepTime:
    """How long a step takes, from first principles, as a line in the fullest device's load.

    Args:
        model: a published one by name ("deepseek-v3", "kimi-k2", "grug-250b"), a preset of
            `equipoise train`, or a Workload of costs/workload.py.
        cluster: KIND-NUMBER such as "gb200-64", a YAML file of figures, or a Cluster.
        expert_parallel: devices that share the experts of a layer; by default the most, up to 64,
            that divide both numbers.
        hidden: the share of the exchange of tokens that is behind computing, 0 to 1.
        utilization: the share of the peak that is reached while computing; by default the
            cluster's, 0.4.
        changes: settings of a preset, such as batch_size.

    Returns:
        StepTime: its parts, `seconds(fullest)`, `table(imbalances, steps=, price=)`.

    Example:
        >>> times = step_time("deepseek-v3", "h800-2048")
        >>> times.seconds(fullest=1.5) > times.seconds()
        True
    """
    workload = find_workload(model, **changes) if isinstance(model, str) else model
    cluster = find_cluster(cluster) if isinstance(cluster, str) else cluster
    if utilization is not None:
        cluster = replace(cluster, compute_share=utilization)
    return time_of_step(workload, cluster, expert_parallel=expert_parallel, hidden=hidden)


def find_workload(name: str, **changes: Any) -> Workload:
    """A published model or a preset of `equipoise train`; `changes` are settings of the preset."""
    if name in TRAINING_PRESETS:
        return training_workload(name, preset(name, **changes))
    if name not in PUBLISHED:
        known = [*PUBLISHED, *TRAINING_PRESETS]
        raise ValueError(
            f"no model {name!r}{did_you_mean(name, known)}: there are {', '.join(known)}"
        )
    if changes:
        raise ValueError(
            f"{name} is a published model: {', '.join(changes)} can be changed of presets only"
        )
    return PUBLISHED[name]
