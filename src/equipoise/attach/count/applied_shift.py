"""AppliedShift: what a model adds to the scores of one router before the choice.

A balancer keeps its shift up to a common constant, and in its own float32 tensor. The model has a
bias of its own (or none), which others write too: a checkpoint is loaded, a cast rounds it, a move
replaces it. This class keeps the two equal, and keeps the mean of the bias that was loaded.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from equipoise.attach.find.bias import Bias
from equipoise.balancing import Dual

_MOST_LOOKS = 8


class OtherWriters:
    """Notices that something else moves a bias step by step, as OLMo-core's `post_batch` and
    Automodel's `update_bias` do: then two rules act at once, and neither is what it says.

    One change is a checkpoint that is loaded. To look at the values a GPU is waited for, so it is
    done a few times only, and only where the bias was touched.
    """

    def __init__(self) -> None:
        self.applied = False
        """whether we wrote since another did"""
        self._found = 0
        self._looks = 0

    def notice(self, path: str, is_ours: Tensor) -> None:
        """The bias was touched by another: `is_ours` says whether its values are still ours."""
        if not self.applied or self._looks == _MOST_LOOKS:
            return
        self._looks += 1
        if bool(is_ours):
            return
        self.applied = False
        self._found += 1
        if self._found == 2:
            self._looks = _MOST_LOOKS
            warnings.warn(
                f"something else changed {path} after each of two steps: two rules move it. Switch "
                "the model's own rule off (gate_bias_update_factor=0 in NeMo Automodel, "
                "bias_gamma=None in OLMo-core), or do not balance it here",
                stacklevel=2,
            )


class AppliedShift:
    """One router's shift, in the balancer and in the model.

    Args:
        balancer: its shift starts from the model's bias.
        bias: the model's own, or None where the family has none; then the top-K is shifted.
    """

    @torch.no_grad()
    def __init__(self, balancer: Dual, bias: Bias | None) -> None:
        self.balancer = balancer
        self.bias = bias
        if bias is not None:
            bias.check_writable()
            balancer.shift.copy_(bias.read())
        self.mean = balancer.shift.double().mean()
        """of the bias that was loaded. It is kept: a rule that lets it drift ends in large numbers
        with few digits left
        """
        self.values = balancer.shift.clone()
        """(E,) float32: what the model adds"""
        self.first = self.values.clone()
        """(E,) float32: when balancing began; the reference policy's"""
        self._moved: Tensor | None = None
        """the values, while those of the reference stand in their place"""
        self._mark: tuple[object, ...] | None = None
        """of the model's bias when we last wrote it (Bias.mark)"""
        self.others = OtherWriters()

    @torch.no_grad()
    def write(self) -> None:
        """Write the values into the model's bias, where there is one."""
        if self.bias is not None:
            self.bias.write(self.values)
            self._mark = self.bias.mark

    @torch.no_grad()
    def apply(self) -> None:
        """Let the model route by the balancer's shift."""
        shift = self.balancer.shift
        self.values = shift + (self.mean.to(shift.device) - shift.double().mean()).float()
        self.write()
        self.others.applied = True

    @torch.no_grad()
    def set(self, shift: Tensor) -> None:
        """Let the balancer and the model route by this shift, (E,) float32."""
        self.balancer.shift.copy_(shift)
        self.apply()

    def start_from(self, shift: Tensor) -> None:
        """Begin from a shift that this model was trained with."""
        self.set(shift)
        self.first = self.values.clone()

    def begin_reference(self) -> None:
        """Let the model route by the shift it had when balancing began.

        DPO, GRPO and others take the model without its adapter as the policy to stay close to: it
        must not move with the balancers.
        """
        self.refresh()
        self._moved = self.values
        self.values = self.first.to(self.values.device)
        self.write()

    def end_reference(self) -> None:
        """Let the model route by the balancer's shift again."""
        if self._moved is not None:
            self.values, self._moved = self._moved, None
            self.write()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what others wrote into the model's bias since we did.

        Where the bias is only what we wrote, rounded to another dtype, the unrounded one is put
        back. The comparison stays on the device: nothing waits for a GPU.
        """
        bias = self.bias
        if bias is None or self._mark == bias.mark:
            return
        values = bias.read()
        self.balancer.to(values.device)
        written = self.values.to(values.device)
        is_ours = (values == written.to(bias.dtype).float()).all()
        self.others.notice(bias.path, is_ours)
        self.balancer.shift.copy_(torch.where(is_ours, self.balancer.shift, values))
        self.mean = torch.where(is_ours, self.mean.to(values.device), values.double().mean())
        self.values = torch.where(is_ours, written, values)
        self.write()
