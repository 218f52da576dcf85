"""What the doctor finds of one layer's bias, and which findings are serious.

Serious is what makes a checkpoint, loaded as it is, choose other experts than were trained: values
that are no numbers, digits that were rounded away, a bias that is not the one the balancers last
set, a shift that no model file holds. All else is advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from equipoise.attach.state.sidecar import SIDECAR_NAME
from equipoise.integrations.huggingface.checkpoint import StoredBias

ScoreSource = Literal["trace", "gate", "normal"]
"""recorded; drawn through the gate's own weights; drawn as logits"""


@dataclass(frozen=True)
class Finding:
    """One layer's bias."""

    layer: str
    key: str
    dtype: str
    experts: int
    mean: float
    """the common offset"""
    spread: float
    """greatest minus least"""
    distinct: int
    """different values"""
    distinct_bf16: int
    """different values left in bf16"""
    moved: bool
    """whether any value is not 0"""
    changed_bf16: float
    """share of tokens that would choose other experts after rounding; where the bias is stored in
    bf16 already, an estimate of those that did
    """
    changed_centred: float
    """the same, if the common offset is subtracted first"""
    scores: ScoreSource
    """where the scores came from: trace, gate or normal"""
    finite: bool = True
    """whether every value is a finite number"""
    off_sidecar: float | None = None
    """greatest distance from the value that the sidecar beside the model keeps in float32; None
    where no sidecar has this router
    """
    only_in_sidecar: bool = False
    """whether the family has no bias, so that the shift is kept in the sidecar alone"""

    @property
    def lost_digits(self) -> bool:
        """Whether it is stored in half precision, and no sidecar has the digits."""
        rounded = self.moved and self.dtype in ("bfloat16", "float16")
        return rounded and not (self.off_sidecar is not None and self.agrees_with_sidecar)

    @property
    def agrees_with_sidecar(self) -> bool:
        """Whether rounding explains what distance there is from the sidecar; true without one."""
        digits = {"bfloat16": 2.0**-8, "float16": 2.0**-10}.get(self.dtype, 2.0**-20)
        most = (abs(self.mean) + self.spread) * digits
        return self.off_sidecar is None or self.off_sidecar <= most


def shift_beside(beside: Mapping[str, Tensor], stored: StoredBias) -> Tensor | None:
    """The sidecar's values of a router; its names may lack a prefix of the checkpoint's."""
    for name, shift in beside.items():
        same = name == stored.layer or stored.layer.endswith(f".{name}")
        if (same or name.endswith(f".{stored.layer}")) and shift.numel() == stored.bias.numel():
            return shift
    return None


def kept_beside(name: str, shift: Tensor) -> StoredBias:
    """A sidecar's shift, where the family has no bias that could hold it."""
    return StoredBias(f"{SIDECAR_NAME}: {name}/shift", name, shift, None)


def serious_advice(findings: Sequence[Finding]) -> list[str]:
    """A line for every kind of serious finding."""
    lines = []
    if broken := [each for each in findings if not each.finite]:
        lines.append(
            f"{len(broken)} biases hold NaN or infinity, the first in {broken[0].layer}: take an "
            "earlier checkpoint"
        )
    if lost := [each for each in findings if each.lost_digits]:
        worst = worst_finding(lost)
        lines.append(
            f"{len(lost)} biases are stored in {lost[0].dtype}: digits are lost for good "
            f"(an estimated {worst.changed_bf16:.1%} of tokens chose other experts before, in "
            f"{worst.layer}). Store and load them in float32"
        )
    if other := [each for each in findings if not each.agrees_with_sidecar]:
        worst = max(other, key=lambda each: each.off_sidecar or 0.0)
        lines.append(
            f"{len(other)} biases are not those in {SIDECAR_NAME} (off by up to "
            f"{worst.off_sidecar:.3g} in {worst.layer}): the two are of different steps or models. "
            "Save both at once, by balancing.save(folder) after save_pretrained(folder)"
        )
    if alone := [each for each in findings if each.only_in_sidecar and each.moved]:
        lines.append(
            f"{len(alone)} routers have a shift in {SIDECAR_NAME} only: whoever loads the model "
            "without equipoise.balance(model) routes tokens otherwise than it was trained"
        )
    return lines


def worst_finding(findings: Sequence[Finding]) -> Finding:
    """The one whose rounding sends most tokens elsewhere."""
    return max(findings, key=lambda each: each.changed_bf16)
