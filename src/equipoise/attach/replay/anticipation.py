"""Anticipation: a router chooses by its weights of n steps ago, with gates of its weights of today.

Its own code is run twice. First with the old weights in place and without gradients, up to its
choice; that one is counted, since by it experts are loaded. Then with those of today, and its last
top-K returns the experts of the first run, as in a replay. A recomputation does both again.

A gate's weights are its parameters. A layer that people wrote themselves chooses in a forward that
holds its experts too: there its weights are what the ranked scores depend on, found by autograd.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equipoise.attach.find.bias import Bias
from equipoise.attach.find.found_router import FoundRouter
from equipoise.attach.replay.exchanged_topk import ExchangedTopK
from equipoise.layers.weight_history import WeightHistory


class OlderChoice(NamedTuple):
    """What a router chose by its old weights."""

    own: Tensor
    """(T, K), best first"""
    ranked: Tensor
    """(..., E), what it was chosen by, before the shift where the model has no bias"""
    answer: Any
    """what the gate returned; None of a layer that was left at its choice"""


class _ChosenError(Exception):
    """Ends a run at its choice."""


class _Place(NamedTuple):
    """Where a parameter hangs."""

    owner: nn.Module
    name: str

    @property
    def value(self) -> Tensor:
        found = self.owner._parameters[self.name]
        assert found is not None
        return found


class Anticipation:
    """One router's weights of some steps ago.

    Args:
        found: the router.
        steps: n.
    """

    def __init__(self, found: FoundRouter, steps: int) -> None:
        self.found = found
        self.history = WeightHistory(steps)
        self._whole_layer = found.gate is found.block
        self._weights: list[_Place] | None = None
        if not self._whole_layer:
            self._keep([each for each in _places(found.gate) if not _is_bias(each, found.bias)])

    def advance(self) -> None:
        """A step was taken."""
        if self._weights is not None:
            self.history.add(place.value for place in self._weights)

    def prepare(
        self, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Find the weights of a whole layer, once: it is run to its choice."""
        if self._weights is None:
            self._keep(self._find_weights(run, args, kwargs))

    def choose(
        self, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> OlderChoice:
        """What the router's own code chooses by the old weights."""
        assert self._weights is not None, "prepare() comes first"
        with _in_place(self._weights, self.history.oldest), torch.no_grad():
            return self._run_to_choice(run, args, kwargs)

    def _keep(self, places: list[_Place]) -> None:
        self._weights = places
        self.advance()

    def _run_to_choice(
        self, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> OlderChoice:
        spec, seen = self.found.spec, list[tuple[Tensor, Tensor]]()

        def keep(own: Tensor, ranked: Tensor, scores: Tensor) -> Tensor:
            seen.append((own.reshape(-1, spec.top_k), ranked))
            if self._whole_layer:
                raise _ChosenError
            return own

        answer = None
        with contextlib.suppress(_ChosenError), ExchangedTopK(spec, keep):
            answer = run(*args, **kwargs)
        return OlderChoice(*seen[-1], answer)

    def _find_weights(
        self, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[_Place]:
        """The parameters of a whole layer that its choice depends on."""
        places = [each for each in _places(self.found.gate) if each.value.requires_grad]
        with torch.enable_grad():
            ranked = self._run_to_choice(run, args, kwargs).ranked
        if not ranked.requires_grad or not places:
            return []
        values = [place.value for place in places]
        found = torch.autograd.grad(ranked.sum(), values, allow_unused=True)
        return [place for place, gradient in zip(places, found) if gradient is not None]


def check_anticipates(routers: Sequence[FoundRouter]) -> None:
    """Refuse routers that are given scores instead of hidden states."""
    outside = [found.name for found in routers if not found.spec.in_gate]
    if outside:
        raise ValueError(
            f"{', '.join(outside)} choose outside of their gate, from scores alone: they cannot "
            "choose by older weights. Leave them out by skip=[...]"
        )


def _is_bias(place: _Place, bias: Bias | None) -> bool:
    """Whether a parameter is what the balancer moves: the shift is today's."""
    return bias is not None and place == (bias.owner, bias.attribute)


def _places(module: nn.Module) -> list[_Place]:
    return [
        _Place(owner, name)
        for owner in module.modules()
        for name, value in owner._parameters.items()
        if value is not None
    ]


@contextlib.contextmanager
def _in_place(places: Sequence[_Place], values: Sequence[Tensor]) -> Iterator[None]:
    """Within the block, the modules have these values; no parameter is written to."""
    today = [place.value for place in places]
    try:
        for place, value in zip(places, values):
            # a plain tensor stands there for the length of one run
            place.owner._parameters[place.name] = value  # type: ignore[assignment]
        yield
    finally:
        for place, value in zip(places, today):
            place.owner._parameters[place.name] = value  # type: ignore[assignment]
