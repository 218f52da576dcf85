"""What the trackers of a training are sent about balance: TensorBoard, W&B, trackio.

A model with 60 layers of 256 experts has 15,360 loads in every step, and a tracker that is sent
each of them under a key of its own shows none. So it is a handful of numbers, and now and then one
picture with all loads on one scale.

    layer_balance   what is known of a layer's step
    levels          the numbers
    picture         the picture
    senders         how each tracker takes them
"""

from equipoise.tracking.layer_balance import LayerBalance, switched_share
from equipoise.tracking.levels import balance_levels, relative_loads
from equipoise.tracking.picture import load_picture
from equipoise.tracking.senders import check_tracker, send_balance

__all__ = [
    "LayerBalance",
    "balance_levels",
    "check_tracker",
    "load_picture",
    "relative_loads",
    "send_balance",
    "switched_share",
]
