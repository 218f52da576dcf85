"""advice: what `equipoise advise` answers, as typed rows. The terminal, --json and the page are
made from them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RateAdvice:
    """The rate of one rule."""

    balancer: str
    rate: float
    imbalance: float
    """forecast: mean over layers and over the last third of the training"""
    over_floor: float
    settles_after: int
    """steps, in the slowest layer"""
    low: float
    high: float
    """rates between which the forecast is within a tenth of the best"""
    usual_rate: float
    usual_imbalance: float
    """what the rule's own default would leave"""
    band: float | None
    """max_k B_k(u) / L_k: the share of its target that one update can move a load by; None for
    rules whose steps are not u
    """
    curve: tuple[tuple[float, float], ...] = ()
    """(rate, forecast) of every rate that was looked at"""


@dataclass(frozen=True)
class Advice:
    """Rates for a stream of scores, with the evidence they rest on."""

    stream: str
    layers: int
    batches: int
    """of each layer"""
    steps: int
    """of the training that rates are for"""
    tokens: int
    """in a batch of it"""
    floor: float
    inflation: float
    """how much more loads vary than those of independent tokens"""
    drift: float
    """q: what p* moves by in a step, root mean square over experts; 0: none was seen"""
    drift_over_chance: float
    """how far one step of drift moves loads, in multiples of what chance does"""
    allowed_over_chance: float
    """the same of the drift that the rates allow for: batches of few sequences can miss some"""
    least_curvature: float
    """lambda_2, in units of tokens: 1 over it is the textbook u of 1/n steps"""
    rates: tuple[RateAdvice, ...]

    @property
    def look_ahead(self) -> bool:
        """Whether looking ahead can pay: drift moves loads by more in a step than chance does."""
        return self.drift_over_chance > 1

    def rate_of(self, balancer: str) -> RateAdvice:
        return next(each for each in self.rates if each.balancer == balancer)

    def paragraph(self) -> str:
        """The advice in words, with its evidence and its limits."""
        best = min(self.rates, key=lambda each: each.imbalance)
        sign = self.rate_of("deepseek")
        drift = (
            f"p* moves by {self.drift:.1e} a step, which moves loads by "
            f"{self.drift_over_chance:.2g} times what chance does"
            if self.drift
            else "no drift was seen"
        )
        if self.allowed_over_chance > 1.05 * self.drift_over_chance:
            drift += (
                f"; rates allow for {self.allowed_over_chance:.2g} times, since {self.batches} "
                "batches may show too little of it: if they do not, smaller rates leave less"
            )
        return (
            f"For {self.stream}, {self.steps:,} steps of {self.tokens:,} tokens: deepseek at rate "
            f"{sign.rate:.2g}. It should leave an imbalance of {sign.imbalance:.4f}, "
            f"{sign.over_floor:.2f} times what chance alone leaves, after {sign.settles_after:,} "
            f"steps; rates from {sign.low:.2g} to {sign.high:.2g} are as good within a tenth, and "
            f"its usual {sign.usual_rate:g} would leave {sign.usual_imbalance:.4f}. Of the four "
            f"rules {best.balancer} at {best.rate:.2g} should leave least, {best.imbalance:.4f}. "
            f"One update of deepseek can move a load by {sign.band:.0%} of its target. "
            f"Looking ahead {'can pay' if self.look_ahead else 'is not worth its cost'}. "
            f"Evidence: {self.batches} batches of {self.layers} layer{'s'[: self.layers > 1]}; "
            f"loads vary {self.inflation:.1f} times as much as those of independent tokens; "
            f"{drift}. curvature finds its step by itself, and needs none of this. Scores of a "
            "training react to the rule: confirm by a short one."
        )
