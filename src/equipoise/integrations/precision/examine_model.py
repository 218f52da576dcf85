"""The choices of a Hugging Face model's routers over text, forward after forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.attach.find.routers import find_routers
from equipoise.integrations.huggingface.reading import check_vocabulary
from equipoise.integrations.precision.summary import ExaminedRouter, join_choices
from equipoise.integrations.precision.watch_gates import refuse_router, watched_gates
from equipoise.routing.rounding import Precision


@torch.no_grad()
def examine_model(
    model: Any,
    batches: Iterable[Tensor],
    precisions: Sequence[Precision],
    on_batch: Callable[[], None] = lambda: None,
) -> tuple[dict[str, ExaminedRouter], dict[str, str]]:
    """By layer; and the routers that were not examined, with the reason."""
    routers, left_alone = find_routers(model)
    skipped = {each.name: each.reason for each in left_alone}
    skipped |= {each.name: why for each in routers if (why := refuse_router(each)) is not None}
    chosen = [each for each in routers if each.name not in skipped]
    with watched_gates(model, chosen, precisions) as watches:
        for ids in batches:
            check_vocabulary(ids, model)
            # without the head: the logits of the vocabulary are not needed
            model.base_model(input_ids=ids.to(model.device), use_cache=False)
            on_batch()
    found = {
        name: ExaminedRouter(
            join_choices(watch.found),
            watch.router.spec.num_experts,
            watch.router.spec.top_k,
            watch.source,
        )
        for name, watch in watches.items()
        if watch.found
    }
    skipped |= {name: "it was not called" for name in watches if name not in found}
    if not found:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise ValueError(f"no router could be examined ({reasons or 'the model has none'})")
    return found, skipped
