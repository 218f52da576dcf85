"""step_time: how long a step takes under expert parallelism, by the load of the fullest device.

    times = equipoise.step_time("deepseek-v3", "h800-2048")
    times.seconds(fullest=1.2)

Of T tokens a step, each of G devices has T/G. P devices share the experts of a layer; every layer
waits for its fullest device, which has r times the mean:

    step          rest + r (experts + exchange)
    experts       T/G * FLOPs of routed experts / FLOP/s reached
    rest          T/G * all other FLOPs / FLOP/s reached
    exchange      4 times a layer (to the experts and back, forward and backward) the bytes of a
                  device over the slower of its two ways:
      links       K (n - 1)/n numbers D wide, n being the devices of a node
      network     (N - 1) (1 - (1 - 1/N)^K) of them, N being the nodes of a group: a token is sent
                  once to each node where it has an expert, and the links forward it there

The time lost is that above r = 1, in which all devices but the fullest wait. Not counted: pipeline
bubbles, the optimizer and the exchange of gradients, where they are not hidden behind computing;
slow starts of small messages; memory. With `hidden` a share of the exchange is behind computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from equipoise.costs.cluster import Cluster, checked_group
from equipoise.costs.fullest import fullest_device, imbalance_of_fullest
from equipoise.costs.workload import Workload

EXCHANGES = 4
"""of a layer in a step: dispatch and combine, forward and backward"""
SHOWN_IMBALANCES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class ImbalanceCost:
    """A row of the table: what one imbalance costs."""

    imbalance: float
    """mean |load - target| / target of experts, in single forwards"""
    fullest: float
    """the fullest device's load over the mean"""
    step_seconds: float
    idle_share: float
    """of all device time, spent in waiting for the fullest device"""
    device_hours: float
    """of all steps"""
    lost_device_hours: float
    """of them, those above balance"""
    lost_money: float | None
    """None without a price"""


@dataclass(frozen=True)
class StepTime:
    """The time of a step as a line in the fullest device's load."""

    workload: Workload
    cluster: Cluster
    group: int
    """devices that share the experts of a layer"""
    rest_seconds: float
    expert_seconds: float
    """when balanced"""
    exchange_seconds: float
    """when balanced; without what is hidden"""

    def seconds(self, fullest: float = 1.0) -> float:
        """Of a step whose fullest device has `fullest` times the mean load."""
        return self.rest_seconds + fullest * (self.expert_seconds + self.exchange_seconds)

    def idle_share(self, fullest: float) -> float:
        """Of all device time, what is lost against balance."""
        return 1 - self.seconds() / self.seconds(fullest)

    def lost_device_hours(self, fullest: float) -> float:
        """Of one step."""
        lost = self.seconds(fullest) - self.seconds()
        return lost * self.cluster.devices / 3600

    def fullest_for(self, seconds: float) -> float:
        """The load of the fullest device at which a step takes so long: the inverse of `seconds`.
        Below 1 where a balanced step takes longer already.
        """
        return (seconds - self.rest_seconds) / (self.expert_seconds + self.exchange_seconds)

    def fullest_of(self, imbalance: float) -> float:
        """The fullest device of a group, by the law of fullest.py."""
        load = self.workload
        return fullest_device(imbalance, load.num_experts, self.group, load.top_k)

    def imbalance_of(self, fullest: float) -> float:
        """The imbalance of normal loads with such a fullest device."""
        return imbalance_of_fullest(fullest, self.workload.num_experts, self.group)

    def table(
        self,
        imbalances: Sequence[float] = SHOWN_IMBALANCES,
        *,
        steps: int = 1000,
        price: float | None = None,
    ) -> list[ImbalanceCost]:
        """What each imbalance costs over so many steps; `price` is of a device hour."""
        check_price(price)
        if steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps}")
        return [self._cost(each, steps, price) for each in imbalances]

    def _cost(self, imbalance: float, steps: int, price: float | None) -> ImbalanceCost:
        fullest = self.fullest_of(imbalance)
        lost = steps * self.lost_device_hours(fullest)
        return ImbalanceCost(
            imbalance=imbalance,
            fullest=fullest,
            step_seconds=self.seconds(fullest),
            idle_share=self.idle_share(fullest),
            device_hours=steps * self.seconds(fullest) * self.cluster.devices / 3600,
            lost_device_hours=lost,
            lost_money=None if price is None else price * lost,
        )

    def to_dict(self) -> dict[str, object]:
        """As JSON prints it."""
        return asdict(self) | {"balanced_seconds": self.seconds()}


def time_of_step(
    workload: Workload, cluster: Cluster, *, expert_parallel: int | None = None, hidden: float = 0.0
) -> StepTime:
    """By the formula at the top of the file; equipoise.step_time finds both by their names."""
    group = checked_group(expert_parallel, cluster.devices, workload.num_experts)
    if not 0 <= hidden <= 1:
        raise ValueError(f"hidden is a share of the exchange, 0 to 1, not {hidden}")
    tokens = workload.tokens / cluster.devices
    experts = tokens * workload.expert_flops / cluster.flops
    return StepTime(
        workload=workload,
        cluster=cluster,
        group=group,
        rest_seconds=tokens * workload.flops_per_token / cluster.flops - experts,
        expert_seconds=experts,
        exchange_seconds=(1 - hidden) * exchange_seconds(workload, cluster, group),
    )


def exchange_seconds(workload: Workload, cluster: Cluster, group: int) -> float:
    """Of all layers of a step under balance, by the formula at the top of the file."""
    tokens = workload.tokens / cluster.devices
    vector = workload.hidden_size * workload.bytes_per_number
    in_node, nodes = min(group, cluster.gpu.node), max(1.0, group / cluster.gpu.node)
    by_links = workload.top_k * (in_node - 1) / in_node * vector / cluster.link_bytes
    other_nodes = (nodes - 1) * (1 - (1 - 1 / nodes) ** workload.top_k)
    by_network = other_nodes * vector / cluster.network_bytes
    return EXCHANGES * workload.moe_layers * tokens * max(by_links, by_network)


def check_price(price: float | None) -> None:
    """Refuse what no device hour costs."""
    if price is not None and not 0 <= price < float("inf"):
        raise ValueError(f"a price of a device hour is a number, 0 or more, not {price}")
