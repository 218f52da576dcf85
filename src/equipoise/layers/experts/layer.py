"""Experts: the layer, and which implementation runs it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.layers.experts.grouped import grouped_experts
from equipoise.layers.experts.loop import loop_experts
from equipoise.layers.experts.padded import padded_experts

Implementation = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(hidden, experts, gates, gate_up, down, onto) to the output (T, D)"""

IMPLEMENTATIONS: dict[str, Implementation] = {
    "loop": loop_experts,
    "grouped": grouped_experts,
    "padded": padded_experts,
}


class Experts(nn.Module):
    """E SwiGLU experts with stacked weights.

    `gate_up` (E, 2F, D) holds W_gate above W_up, so that one multiplication does both, and `down`
    is (E, D, F): the layout of transformers' gate_up_proj and down_proj. The transposed layouts
    were measured to be within 2% of it.

    Args:
        num_experts: E.
        hidden_size: D.
        expert_size: F.
        implementation: "loop", "grouped", "padded", or "auto" for the fastest known.
        init_std: standard deviation of the normal distribution that the weights start from.

    Example:
        >>> layer = Experts(4, 8, 16)
        >>> experts = torch.tensor([[0, 1], [2, 4], [4, 4]])
        >>> layer(torch.randn(3, 8), experts, torch.ones(3, 2))[2].count_nonzero().item()
        0
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        expert_size: int,
        *,
        implementation: str = "auto",
        init_std: float = 0.006,
    ) -> None:
        super().__init__()
        if implementation != "auto" and implementation not in IMPLEMENTATIONS:
            raise ValueError(
                f"implementation must be auto, {', '.join(IMPLEMENTATIONS)}, not {implementation!r}"
            )
        self.implementation = implementation
        self.init_std = init_std
        self.gate_up = nn.Parameter(torch.empty(num_experts, 2 * expert_size, hidden_size))
        self.down = nn.Parameter(torch.empty(num_experts, hidden_size, expert_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gate_up, std=self.init_std)
        nn.init.normal_(self.down, std=self.init_std)

    def forward(
        self, hidden: Tensor, experts: Tensor, gates: Tensor, onto: Tensor | None = None
    ) -> Tensor:
        """(T, D) from hidden (T, D), experts (T, K) int64 and gates (T, K), as `route` returns
        them.

        Under autocast everything is cast as nn.Linear casts it. Gates may be more precise than
        hidden. The result is added to `onto` (T, D) if given, whose memory may be used for it:
        saves a pass where shared experts have something to add to.
        """
        _check_inputs(self, hidden, experts, gates)
        device = hidden.device.type
        hidden, gate_up, down = _cast_by_autocast(device, hidden, self.gate_up, self.down)
        run = IMPLEMENTATIONS[
            fastest_implementation(hidden, down)
            if self.implementation == "auto"
            else self.implementation
        ]
        with torch.autocast(device, enabled=False):
            return run(hidden, experts, gates, gate_up, down, onto)

    def extra_repr(self) -> str:
        E, D, width = self.down.shape
        return f"{E}, {D}, {width}, implementation={self.implementation!r}"


def fastest_implementation(hidden: Tensor, down: Tensor) -> str:
    """What "auto" means for these tensors: see the package's docstring."""
    known = hidden.dtype in (torch.bfloat16, torch.float16, torch.float32) and hasattr(
        F, "grouped_mm"
    )
    aligned = all(size * hidden.element_size() % 16 == 0 for size in down.shape[1:])
    return "grouped" if hidden.device.type != "cpu" and known and aligned else "loop"


def _cast_by_autocast(device: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """What autocast does to the arguments of a matrix multiplication; our own function it would not
    know.
    """
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


def _check_inputs(layer: Experts, hidden: Tensor, experts: Tensor, gates: Tensor) -> None:
    """Refuse shapes and dtypes that do not fit, with what to do about it."""
    D = layer.down.shape[1]
    if hidden.dim() != 2 or hidden.shape[1] != D:
        raise ValueError(
            f"hidden must be (tokens, {D}), not {tuple(hidden.shape)}: flatten leading dimensions "
            "first"
        )
    if experts.shape != gates.shape or experts.dim() != 2 or len(experts) != len(hidden):
        raise ValueError(
            f"experts {tuple(experts.shape)} and gates {tuple(gates.shape)} must both be "
            f"({len(hidden)} tokens, choices)"
        )
    if hidden.dtype != layer.down.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise TypeError(
            f"hidden is {hidden.dtype}, the weights are {layer.down.dtype}: convert one, or use "
            "autocast"
        )
