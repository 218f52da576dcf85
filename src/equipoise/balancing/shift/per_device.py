"""PerDevice: one price per device. Devices are even, and their experts free among themselves.

Under expert parallelism a forward waits for its fullest device. How a device's tokens spread over
its own experts costs nothing, and balancing it as well costs affinity. So the experts of a device
share one number q_d, and the dual is that of device capacities:

    f(q) = sum_i [sum of the K largest of gamma_ik + q_d(k)] - sum_d L_d q_d,    df/dq_d = A_d - L_d

where A_d and L_d are the loads and the target loads of a device's experts, summed. Every direction
is read from sums over experts, and those of a device add up:

    LoadGap         its loads
    QuantileMove    the histograms of its experts' leads: for fixed token prices f falls apart
                    into one dimension per device, and this is still its exact minimum
    CurvatureMove   tokens that hesitate between two devices; those that hesitate within one do
                    not count. The Hessian of f is exactly the experts' one, summed over blocks

So any direction works, and counts per device; any part and geometry then works on its step, which
is the same for all experts of a device. With B experts to a device, a device is to its direction as
an expert that T B tokens could choose, K / B each: "per token" is per token and place.

Only flip distances (flips.py) are no longer exact: where a token's K-th choice is on the device
itself, a rise of the device's price swaps nothing. Far from balance the moves come out shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.balancing.shift.directions import Direction
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally
from equipoise.routing.measures.devices import check_devices, default_devices

Devices = int | Sequence[int] | Tensor | None
"""how many, each with a block of consecutive experts; or the device of every expert; None: 8, or
the greatest number below that divides the experts
"""


class PerDevice(Direction):
    """A direction with one number for each device, the same for all its experts.

    Example:
        >>> from equipoise.balancing import Dual
        >>> from equipoise.balancing.shift.directions import LoadGap
        >>> from equipoise.balancing.shift.parts import Scale, Sign
        >>> direction = PerDevice(LoadGap("counts"), devices=2)
        >>> balancer = Dual(4, 1, direction, [Sign(), Scale(0.25)])
        >>> scores = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1]])
        >>> balancer.update(balancer.tally(scores, balancer.route(scores)))
        >>> balancer.shift.tolist()
        [-0.25, -0.25, 0.25, 0.25]
    """

    place: Tensor
    target: Target

    def __init__(self, direction: Direction, devices: Devices = None) -> None:
        super().__init__()
        self.direction = direction
        self.devices = devices
        self.moves_when_balanced = direction.moves_when_balanced
        self.needs_runner_up = direction.needs_runner_up
        self.filters_noise = direction.filters_noise

    @property
    def needs_scores(self) -> bool:
        return self.direction.needs_scores

    def build(self, num_experts: int) -> None:
        place = device_of_experts(self.devices, num_experts)
        self.number = int(place.max()) + 1
        self.direction.build(self.number)
        for module in self.modules():
            if isinstance(module, Direction):
                # not saved: where experts are is what the user asks for, not what was learnt
                module.keep_buffer(
                    "place", place, (num_experts,), dtype=torch.int64, persistent=False
                )

    def aim(self, target: Target) -> None:
        # as they began, on the CPU: on the meta device weights have no values
        weights, place = target.first_value("weights"), self.first_value("place")
        weights = weights.new_zeros(self.number).index_add_(0, place, weights)
        experts = len(place) // self.number
        self.target = Target(self.number, target.top_k, weights, experts_per_price=experts)

    def fix_sampling_stride(self, tokens: int, top_k: int, num_experts: int) -> None:
        self.direction.fix_sampling_stride(tokens, top_k, num_experts)

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        parts = self.direction.count(scores, routing, shift)
        axes = self._expert_axes()
        return {name: self._per_device(part, axes[name]) for name, part in parts.items()}

    def part_shapes(self, num_experts: int) -> dict[str, tuple[int, ...]] | None:
        return self.direction.part_shapes(self.number)

    def forward(self, tally: Tally, target: Target) -> Tensor:
        per_device = Tally(
            loads=self._sum_over_devices(tally.loads, 0),
            forwards=self._sum_over_devices(tally.forwards, 1),
            step=tally.step,
            parts=tally.parts,
        )
        return self.direction(per_device, self.target)[self.place]

    def extra_repr(self) -> str:
        return f"devices={self.number}"

    def _expert_axes(self) -> dict[str, list[int]]:
        """Along which axes of each part experts lie: those that another number of them changes."""
        here, there = self.direction.part_shapes(2), self.direction.part_shapes(3)
        if here is None or there is None:
            raise TypeError(
                f"{type(self.direction).__name__} does not say the shapes of what it counts, so "
                "that it cannot be summed over devices: give it part_shapes()"
            )
        return {
            name: [axis for axis, size in enumerate(shape) if size != there[name][axis]]
            for name, shape in here.items()
        }

    def _per_device(self, part: Tensor, axes: list[int]) -> Tensor:
        for axis in axes:
            part = self._sum_over_devices(part, axis)
        # pairs of experts: those of one device are not between devices
        return part.fill_diagonal_(0) if len(axes) == 2 else part

    def _sum_over_devices(self, values: Tensor, axis: int) -> Tensor:
        shape = list(values.shape)
        shape[axis] = self.number
        return values.new_zeros(shape).index_add_(axis, self.place.to(values.device), values)


def device_of_experts(devices: Devices, num_experts: int) -> Tensor:
    """(E,) int64 on the CPU: the device of every expert, numbered from 0; equally many on each."""
    devices = default_devices(num_experts) if devices is None else devices
    check_devices(devices)
    if isinstance(devices, int):
        if devices < 1 or num_experts % devices:
            raise ValueError(
                f"{num_experts} experts do not divide over {devices} devices: choose a divisor, or "
                "name the device of every expert"
            )
        return torch.arange(num_experts, device="cpu") // (num_experts // devices)
    if len(devices) != num_experts:
        raise ValueError(
            f"{len(devices)} devices are named for {num_experts} experts: name one for each"
        )
    _, place, held = torch.unique(
        torch.as_tensor(devices, device="cpu"), return_inverse=True, return_counts=True
    )
    if len(held.unique()) > 1:
        raise ValueError(
            f"devices hold {held.tolist()} experts: every one must hold as many, since a device "
            "without work for a place would wait for the others"
        )
    return place
