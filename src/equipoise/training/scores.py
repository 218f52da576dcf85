"""Looking at the routers' scores while a model runs, without touching anything."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.layers import Router
from equipoise.model import DeepSeekMoE
from equipoise.routing import score_function


@contextlib.contextmanager
def watch_scores(*nets: DeepSeekMoE, wanted: bool = True) -> Iterator[dict[str, Tensor]]:
    """The scores (T, E) of every MoE layer in the first forward of the block, on the CPU; the dict
    is filled when it ends.

    Where several nets shared the forward's tokens, the scores of the first one's come first.
    """
    seen: list[dict[str, Tensor]] = [{} for _ in nets]
    together: dict[str, Tensor] = {}
    hooks = [
        layer.router.register_forward_hook(_keep(into, name))
        for net, into in zip(nets, seen, strict=True)
        for name, layer in (net.moe_layers if wanted else {}).items()
    ]
    try:
        yield together
    finally:
        for hook in hooks:
            hook.remove()
    together.update({name: torch.cat([each[name] for each in seen]) for name in seen[0]})


def _keep(seen: dict[str, Tensor], name: str) -> Any:
    @torch.no_grad()
    def hook(router: Router, arguments: tuple[Tensor, ...], output: object) -> None:
        if name in seen:  # a later micro-batch, or the same one computed again in backward
            return
        hidden = arguments[0].detach().flatten(0, -2)
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(hidden.float(), router.weight.detach().float())
        seen[name] = score_function(router.score)(logits).cpu()

    return hook


def choose_layers(found: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Those of the layers that a name or pattern stands for, in the model's order; all where
    nothing is wanted.
    """
    for pattern in wanted:
        if not fnmatch.filter(found, pattern):
            raise ValueError(f"no layer {pattern!r}: there are {', '.join(found)}")
    return [
        name
        for name in found
        if not wanted or any(fnmatch.fnmatch(name, pattern) for pattern in wanted)
    ]
