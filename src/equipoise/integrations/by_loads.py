"""Balancers for frameworks that count loads themselves and call one function to update their
biases.

Such a function sees loads and nothing else, so only rules that need nothing else can take its
place: those whose spec says needs="loads" (equipoise.balancing.spec), such as deepseek, moonlight
and smebu.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.balancing import Dual, resolve_balancer
from equipoise.routing import Tally


class ByLoads:
    """One balancer per layer, made when the number of experts is first seen.

    Args:
        name: of the balancer.
        top_k: experts each token takes.
        **options: of the balancer.
    """

    def __init__(self, name: str, top_k: int, **options: object) -> None:
        self.name, self.top_k, self.options = name, top_k, options
        self.layers: list[Dual] = []
        self._saved: list[dict[str, Tensor]] = []
        # mistakes are reported now; the number of experts is a guess, so no target fits it yet
        guessed = options if "target" not in options else {**options, "target": None}
        _make_loads_only(name, 2 * top_k, top_k, guessed)

    @torch.no_grad()
    def update(self, loads: Tensor, biases: Tensor) -> Tensor:
        """(L, E) loads of a whole step, over all ranks, and (L, E) biases -> the next biases,
        float32.

        A bias that is not what was returned last was loaded, or set by other code: the shift
        continues from it.
        """
        if loads.shape != biases.shape or loads.dim() != 2:
            raise ValueError(
                f"loads have shape {tuple(loads.shape)}, biases {tuple(biases.shape)}: both must "
                "be (layers, experts)"
            )
        if not self.layers:
            self._make_layers(len(loads), loads.shape[1], loads.device)
        if len(self.layers) != len(loads):
            raise ValueError(
                f"{len(loads)} layers are updated, but the last time there were {len(self.layers)}"
            )
        # frameworks count in float32
        loads = loads.round().long()
        answer = torch.empty_like(biases, dtype=torch.float32)
        for layer, counted, bias, after in zip(self.layers, loads, biases, answer):
            layer.shift.copy_(bias)
            layer.update(Tally(counted, counted.unsqueeze(0), layer.steps.clone()))
            after.copy_(layer.shift)
        return answer

    def state_dict(self) -> dict[str, Tensor]:
        """What the rules remember, to be saved beside the framework's own checkpoint."""
        return {
            f"{place}.{name}": value
            for place, layer in enumerate(self.layers)
            for name, value in layer.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what the rules remember: now, or when the first update makes the balancers."""
        number = 1 + max((int(key.split(".")[0]) for key in state), default=-1)
        self._saved = [
            {
                key.partition(".")[2]: value
                for key, value in state.items()
                if key.startswith(f"{place}.")
            }
            for place in range(number)
        ]
        if self.layers:
            self._restore_layers()

    def _make_layers(self, layers: int, num_experts: int, device: torch.device) -> None:
        self.layers = [
            _make_loads_only(self.name, num_experts, self.top_k, self.options).to(device)
            for _ in range(layers)
        ]
        if self._saved:
            self._restore_layers()

    def _restore_layers(self) -> None:
        if len(self._saved) != len(self.layers):
            raise ValueError(
                f"the saved state is of {len(self._saved)} layers, the model has {len(self.layers)}"
            )
        for layer, state in zip(self.layers, self._saved):
            layer.load_state_dict(state)
        self._saved = []


def _make_loads_only(
    name: str, num_experts: int, top_k: int, options: Mapping[str, object]
) -> Dual:
    made = resolve_balancer(name, num_experts, top_k, options)
    if made.needs_scores or not isinstance(made, Dual):
        raise ValueError(
            f"{name} needs more than loads, and this framework passes nothing else: choose "
            "deepseek, moonlight ..."
        )
    return made
