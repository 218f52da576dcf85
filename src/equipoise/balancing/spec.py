"""MethodSpec: what the rest of the package must know of a method, said once, where it is defined.

Every named method is one function in presets.py under a decorator:

    @method(kind="shift", rate="update_rate", rates_to_try=(1e-3, 1e-2), needs="loads")
    def deepseek(num_experts, top_k, *, update_rate=1e-3, target=None): ...

Training, the arena, the command line and the integrations ask the spec: which option is the rate,
which rates are worth a trial, whether loads alone are enough, whether a choice looks at later
tokens. So a new method is one entry in presets.py, and no other file holds a list of names.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from equipoise.storage.suggestions import did_you_mean

if TYPE_CHECKING:
    from equipoise.balancing.balancer import Balancer

Kind = Literal["shift", "penalty", "batch solver", "threshold"]
Needs = Literal["loads", "scores", "runner-up"]

_REGISTRY: dict[str, MethodSpec] = {}


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """One method: its constructor, and what can be known of it without making one."""

    name: str
    constructor: Callable[..., Balancer]
    """(num_experts, top_k, **options) to a balancer"""
    kind: Kind
    """what it acts by: a shift of the scores, a term of the loss, a solution of each batch, or a
    threshold per expert, which leaves open how many experts a token has
    """
    needs: Needs
    """what its tally looks at: loads alone, the scores too, or also each token's (K+1)-th choice"""
    rate: str | None = None
    """the option that says how fast or how strongly it acts: update_rate, coefficient, ema or
    strength; None: it has none
    """
    rates_to_try: tuple[float, ...] = ()
    """rates that the arena and `tune` try unless others are given; empty: there is no choice"""
    rate_is_share: bool = False
    """whether a rate is the share of the way that one update goes, at most 1; the option is then
    1 - rate, the share that stays
    """
    arena_default: bool = False
    """whether the arena runs it where no methods are named"""

    within_sequences: bool = False
    """whether a token's experts depend on the tokens before it in its sequence"""

    @property
    def causal(self) -> bool:
        """Whether a token's experts never depend on later tokens of its batch."""
        return self.kind != "batch solver"

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its options."""
        parameters = inspect.signature(self.constructor).parameters
        return tuple(name for name in parameters if name not in ("num_experts", "top_k"))

    @property
    def default_rate(self) -> float | None:
        """The rate of a balancer made without options; None where there is no rate."""
        if self.rate is None:
            return None
        default = float(inspect.signature(self.constructor).parameters[self.rate].default)
        return 1 - default if self.rate_is_share else default

    @property
    def greatest_rate(self) -> float:
        """The greatest rate that has a meaning."""
        return 1.0 if self.rate_is_share else math.inf

    @property
    def update_rate_option(self) -> str:
        """The option that the paper's u sets: a penalty's weight, or the update_rate of all others.

        Methods without an update_rate refuse it as they refuse every unknown option.
        """
        return self.rate if self.kind == "penalty" and self.rate else "update_rate"

    def options_at(self, rate: float | None) -> dict[str, float]:
        """The options that make it run at this rate; none for None."""
        if rate is None:
            return {}
        if self.rate_is_share and rate > self.greatest_rate:
            raise ValueError(
                f"{self.name}'s rate is the share of the way it goes, at most 1, not {rate:g}"
            )
        return {self.rate or "update_rate": 1 - rate if self.rate_is_share else rate}

    def make(self, num_experts: int, top_k: int, **options: object) -> Balancer:
        """A new balancer; an option it does not have is refused."""
        for option in options:
            if option not in self.options:
                raise TypeError(
                    f"{self.name} has no option {option!r}{did_you_mean(option, self.options)}: it "
                    f"takes {', '.join(self.options)}"
                )
        made = self.constructor(num_experts, top_k, **options)
        made.called = self.name
        made.settings = self._shown_settings(options)
        return made

    def _shown_settings(self, options: Mapping[str, object]) -> dict[str, object]:
        """What a balancer's repr shows: its rate, given or not, and the other options given."""
        shown = dict(options)
        if self.rate is not None:
            default = inspect.signature(self.constructor).parameters[self.rate].default
            shown = {self.rate: options.get(self.rate, default)} | shown
        return shown


Constructor = TypeVar("Constructor", bound="Callable[..., Balancer]")


def method(
    *,
    kind: Kind,
    needs: Needs,
    rate: str | None = None,
    rates_to_try: tuple[float, ...] = (),
    rate_is_share: bool = False,
    arena_default: bool = False,
    within_sequences: bool = False,
) -> Callable[[Constructor], Constructor]:
    """Register the function below as a method of its name; see MethodSpec for the arguments."""

    def register(constructor: Constructor) -> Constructor:
        spec = MethodSpec(
            name=constructor.__name__,
            constructor=constructor,
            kind=kind,
            needs=needs,
            rate=rate,
            rates_to_try=rates_to_try,
            rate_is_share=rate_is_share,
            arena_default=arena_default,
            within_sequences=within_sequences,
        )
        _check_spec(spec)
        _REGISTRY[spec.name] = spec
        return constructor

    return register


def method_spec(name: str) -> MethodSpec:
    """The spec of a method by its name."""
    if name not in _REGISTRY:
        raise ValueError(
            f"no balancer {name!r}{did_you_mean(name, _REGISTRY)}: there are {', '.join(_REGISTRY)}"
        )
    return _REGISTRY[name]


def method_specs(kind: Kind | None = None) -> tuple[MethodSpec, ...]:
    """All methods in the order of presets.py, or those of one kind."""
    return tuple(spec for spec in _REGISTRY.values() if kind in (None, spec.kind))


def _check_spec(spec: MethodSpec) -> None:
    """A wrong entry is an error at import, not in the first arena that uses it."""
    if spec.name in _REGISTRY:
        raise ValueError(f"there already is a method {spec.name!r}: choose another name")
    if spec.kind not in get_args(Kind) or spec.needs not in get_args(Needs):
        raise ValueError(
            f"{spec.name}: kind is one of {', '.join(get_args(Kind))}, not {spec.kind!r}; needs "
            f"one of {', '.join(get_args(Needs))}, not {spec.needs!r}"
        )
    if spec.rate is not None and spec.rate not in spec.options:
        raise ValueError(
            f"{spec.name} names {spec.rate!r} as its rate, but its options are "
            f"{', '.join(spec.options)}"
        )
    if spec.rate is None and spec.rates_to_try:
        raise ValueError(f"{spec.name} has rates to try but no rate: name the option in rate=")
