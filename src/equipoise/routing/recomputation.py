"""Whether a forward is a recomputation of activation checkpointing: its tokens were counted before.

Autograd then is running a backward pass in this thread. torch tells it by a private function only,
so it is tried once before anything relies on it.
"""

from __future__ import annotations

import functools

import torch


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread: then a forward is a
    recomputation.
    """
    return torch._C._current_graph_task_id() != -1


@functools.cache
def check_backward_is_seen() -> None:
    """`in_backward` calls a private function of torch: make sure that it still works."""
    if not _backward_is_seen():
        raise RuntimeError(
            f"torch {torch.__version__} does not show whether a backward pass is running, so "
            "tokens would be counted twice under gradient checkpointing. Please report this; "
            "until it is fixed use torch 2.13"
        )


def _backward_is_seen() -> bool:
    """Whether `in_backward` is True inside a backward pass, and False outside."""
    seen: list[bool] = []
    try:
        with torch.enable_grad():
            probe = torch.ones(1, requires_grad=True)
            probe.register_hook(lambda _: seen.append(in_backward()))
            probe.sum().backward()
        return seen == [True] and not in_backward()
    except AttributeError:
        return False
