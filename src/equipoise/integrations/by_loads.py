"""Balancers for frameworks that count loads themselves and call one function to update their
biases.

Such a function sees loads and nothing else, so only rules that need nothing else can take its
place: those whose spec says needs="loads" (equipoise.balancing.spec), such as deepseek, moonlight
and smebu.

Frameworks have a rate of their own, of their sign rule. It is the rate of ours where our rule is
one of the sign too (`takes_rates`); other rules measure a rate in other units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from equipoise.balancing import Dual, resolve_balancer
from equipoise.balancing.shift.parts import Scale, Sign
from equipoise.balancing.shift.step_sizes import checked_rate
from equipoise.routing import Tally


class ByLoads:
    """One balancer per layer, made when the layer is first updated.

    Args:
        name: of the balancer.
        top_k: experts each token takes; a number for each layer where they differ.
        **options: of the balancer.
    """

    def __init__(self, name: str, top_k: int | Sequence[int], **options: object) -> None:
        self.name, self.top_k, self.options = name, top_k, options
        self.layers: dict[int, Dual] = {}
        """by the layer's place in the model"""
        self._saved: dict[int, dict[str, Tensor]] = {}
        # mistakes are reported now; the number of experts is a guess, so no target fits it yet
        guessed = options if "target" not in options else {**options, "target": None}
        made = _make_loads_only(name, 2 * self._top_k_of(0), self._top_k_of(0), guessed)
        self.is_sign_rule = any(isinstance(part, Sign) for part in made.parts)
        """whether a rate means what it means in the framework: a step is the rate or nothing"""

    @property
    def takes_rates(self) -> bool:
        """Whether the framework's rate is this rule's: it has the same meaning, and no update_rate
        was given.
        """
        return self.is_sign_rule and "update_rate" not in self.options

    @torch.no_grad()
    def update(
        self,
        loads: Tensor,
        biases: Tensor,
        *,
        places: Sequence[int] | None = None,
        rates: Sequence[float] | None = None,
    ) -> Tensor:
        """(L, E) loads of a whole step, over all ranks, and (L, E) biases -> the next biases,
        float32.

        A bias that is not what was returned last was loaded, or set by other code: the shift
        continues from it.

        Args:
            loads: of the layers that are updated.
            biases: theirs.
            places: theirs in the model, where some layers may be left out; without them the layers
                must be the same every time.
            rates: the framework's, one for each; used only by a rule that `takes_rates`.
        """
        if loads.shape != biases.shape or loads.dim() != 2:
            raise ValueError(
                f"loads have shape {tuple(loads.shape)}, biases {tuple(biases.shape)}: both must "
                "be (layers, experts)"
            )
        if places is None:
            places = range(len(loads))
            self._check_number(len(loads))
        for place in places:
            if place not in self.layers:
                self._make_layer(place, loads.shape[1], loads.device)
        if rates is not None and self.takes_rates:
            for place, rate in zip(places, rates, strict=True):
                _set_rate(self.layers[place], rate)
        # frameworks count in float32
        loads = loads.round().long()
        answer = torch.empty_like(biases, dtype=torch.float32)
        for place, counted, bias, after in zip(places, loads, biases, answer, strict=True):
            layer = self.layers[place]
            layer.shift.copy_(bias)
            layer.update(Tally(counted, counted.unsqueeze(0), layer.steps.clone()))
            after.copy_(layer.shift)
        return answer

    def state_dict(self) -> dict[str, Tensor]:
        """What the rules remember, to be saved beside the framework's own checkpoint."""
        # what was loaded and waits for its layer's first update is still remembered
        states = {place: layer.state_dict() for place, layer in self.layers.items()} | self._saved
        return {
            f"{place}.{name}": value
            for place, state in sorted(states.items())
            for name, value in state.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what the rules remember: now, or when the first update makes the balancers.

        A layer that is not in the state had not been updated when it was saved: it starts anew.
        """
        saved: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            number, _, name = key.partition(".")
            saved.setdefault(int(number), {})[name] = value
        self._saved = saved
        self.layers = {place: layer for place, layer in self.layers.items() if place in saved}
        for place, layer in self.layers.items():
            layer.load_state_dict(saved.pop(place))

    def _check_number(self, number: int) -> None:
        """Layers without a place are known by their order, so all of them must be there."""
        known = self.layers.keys() | self._saved.keys()
        if known and known != set(range(number)):
            raise ValueError(
                f"{number} layers are updated, but the last time, or in the state that was loaded, "
                f"there were {len(known)}"
            )

    def _make_layer(self, place: int, num_experts: int, device: torch.device) -> None:
        made = _make_loads_only(self.name, num_experts, self._top_k_of(place), self.options)
        self.layers[place] = made.to(device)
        if place in self._saved:
            made.load_state_dict(self._saved.pop(place))

    def _top_k_of(self, place: int) -> int:
        return self.top_k if isinstance(self.top_k, int) else self.top_k[place]


def _set_rate(layer: Dual, rate: float) -> None:
    for part in layer.parts:
        if isinstance(part, Scale):
            part.by = checked_rate(rate)


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
