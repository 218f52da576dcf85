"""The routers' scores while a model runs, seen by hooks that change nothing."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from equipoise.layers import Router
from equipoise.layers.router import gate_logits
from equipoise.model import DeepSeekMoE
from equipoise.routing import score_function


@contextlib.contextmanager
def watch_scores(*nets: DeepSeekMoE, wanted: bool = True) -> Iterator[dict[str, Tensor]]:
    """The scores (T, E) of every MoE layer in the first forward of the block, on the CPU. The dict
    is filled when the block ends.

    Where several nets (lanes) shared the forward's tokens, their scores are joined in that order.
    """
    seen: list[dict[str, Tensor]] = [{} for _ in nets]
    together: dict[str, Tensor] = {}
    hooks = [
        layer.router.register_forward_hook(_keep_scores(into, name))
        for net, into in zip(nets, seen, strict=True)
        for name, layer in (net.moe_layers if wanted else {}).items()
    ]
    try:
        yield together
    finally:
        for hook in hooks:
            hook.remove()
    together.update({name: torch.cat([each[name] for each in seen]) for name in seen[0]})


def _keep_scores(
    seen: dict[str, Tensor], name: str
) -> Callable[[Router, tuple[Tensor, ...], object], None]:
    @torch.no_grad()
    def hook(router: Router, arguments: tuple[Tensor, ...], output: object) -> None:
        if name in seen:  # a later micro-batch, or the same one computed again in backward
            return
        hidden = arguments[0].detach().flatten(0, -2)
        logits = gate_logits(hidden, router.weight.detach())
        seen[name] = score_function(router.score)(logits).cpu()

    return hook


def choose_layers(found: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The layers that a name or pattern in `wanted` stands for, in the model's order; all of them
    where nothing is wanted.
    """
    for pattern in wanted:
        if not fnmatch.filter(found, pattern):
            raise ValueError(f"no layer {pattern!r}: there are {', '.join(found)}")
    return [
        name
        for name in found
        if not wanted or any(fnmatch.fnmatch(name, pattern) for pattern in wanted)
    ]
