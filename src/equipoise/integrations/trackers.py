"""log_balance: how even the loads are, where people already look: TensorBoard, W&B, trackio.

    balancing.step()
    equipoise.log_balance(writer, balancing, step)                 a model that equipoise balances
    equipoise.log_balance(run, {"0": tally}, step, top_k=2)        one's own layers

Eight numbers (tracking/levels.py), and every `image_every` steps a picture of all loads. For
transformers' Trainer there is tracking_callback.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from equipoise.attach import Balancing
from equipoise.integrations.attached_layers import attached_layers, idle_share_of
from equipoise.routing import Tally
from equipoise.tracking import (
    LayerBalance,
    balance_levels,
    check_tracker,
    load_picture,
    send_balance,
)

MeasuredLayers = Balancing | Mapping[str, LayerBalance | Tally | Tensor]
TRACKED_DEVICES = 8
"""for which idle time is reported"""


def log_balance(
    tracker: object,
    measured: MeasuredLayers,
    step: int,
    *,
    image_every: int = 100,
    top_k: int | None = None,
    target: Tensor | Sequence[float] | None = None,
    devices: int = TRACKED_DEVICES,
    prefix: str = "balance",
) -> dict[str, float]:
    """Send a step's balance to a tracker, and return the numbers that were sent.

    Args:
        tracker: a SummaryWriter, a W&B run, a trackio run, or one of these modules.
        measured: what `equipoise.balance` returned, after its `step()`; or by layer a Tally, loads
            (E,), or a `LayerBalance`, which may say more (such as the share of switched tokens).
        step: of the training.
        image_every: steps between pictures of the loads, layers by experts; 0: none.
        top_k, target: of one's own layers: experts a token takes, for the floor, and the weights
            of the target loads.
        devices: for idle time, with equal blocks of experts; left out where they do not divide.
        prefix: of all names.

    Example:
        >>> class Writer:  # as torch.utils.tensorboard.SummaryWriter
        ...     def add_scalar(self, name, value, step): ...
        >>> sent = equipoise.log_balance(Writer(), {"0": torch.tensor([30, 10])}, 1, devices=2)
        >>> sent["balance/imbalance"]
        0.5
    """
    check_tracker(tracker)
    layers = layer_balances(measured, top_k=top_k, target=target, devices=devices)
    levels = {f"{prefix}/{name}": value for name, value in balance_levels(layers).items()}
    due = image_every > 0 and step % image_every == 0
    send_balance(tracker, levels, step, load_picture(layers, step, prefix) if due else None)
    return levels


def layer_balances(
    measured: MeasuredLayers,
    *,
    top_k: int | None = None,
    target: Tensor | Sequence[float] | None = None,
    devices: int = TRACKED_DEVICES,
) -> dict[str, LayerBalance]:
    """What is known of every layer, from whatever `log_balance` is given."""
    if isinstance(measured, Balancing):
        if top_k is not None or target is not None:
            raise ValueError("a balanced model knows its own top_k and target: leave them out")
        return attached_layers(measured, devices)
    if not isinstance(measured, Mapping):
        raise TypeError(
            "log_balance takes what equipoise.balance returned, or a dict of layers (loads, Tally "
            f"or LayerBalance by name), not {type(measured).__name__}"
        )
    return {
        name: each if isinstance(each, LayerBalance) else _own_layer(each, top_k, target, devices)
        for name, each in measured.items()
    }


def _own_layer(
    counted: Tally | Tensor,
    top_k: int | None,
    target: Tensor | Sequence[float] | None,
    devices: int,
) -> LayerBalance:
    """Loads alone are those of a single forward."""
    loads = counted.loads if isinstance(counted, Tally) else counted
    forwards = counted.forwards if isinstance(counted, Tally) else counted.unsqueeze(0)
    return LayerBalance(loads, top_k, target, idle_share_of(forwards, devices))
