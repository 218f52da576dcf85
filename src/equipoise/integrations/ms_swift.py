"""ms-swift: a callback by name, for trainings that a command line describes.

    # balance.py
    from equipoise.integrations.ms_swift import register_callback

    register_callback("balance", "curvature")

    swift sft --external_plugins balance.py --callbacks balance --model ...

ms-swift makes it as cls(args, trainer), before the Trainer's own part is made, so the model is
balanced when training begins. Releases before 4.0 have no names for callbacks but a list,
`swift.plugin.extra_callbacks`, whose callbacks every training has: there it is put into that list,
and `--callbacks` is left out.

Under Megatron (`megatron sft`) models are no transformers models, and this is not for them.
"""

from __future__ import annotations

import importlib
from typing import Any

from equipoise.attach.trainer_callback import TrainerCallback


def register_callback(name: str = "balance", balancer: str = "curvature", **options: Any) -> None:
    """Let `--callbacks name` balance the model.

    Args:
        name: what it is called on the command line.
        balancer: as for `equipoise.TrainerCallback`.
        **options: as for `equipoise.TrainerCallback`.
    """

    class SwiftCallback(TrainerCallback):
        """Made by ms-swift."""

        def __init__(self, args: Any = None, trainer: Any = None) -> None:
            super().__init__(balancer, **options)

    try:
        callbacks_map = importlib.import_module("swift.callbacks").callbacks_map
    except ModuleNotFoundError as error:
        if error.name != "swift.callbacks":
            raise
        importlib.import_module("swift.plugin").extra_callbacks.append(SwiftCallback())
        return
    if name in callbacks_map:
        raise ValueError(
            f"ms-swift has a callback {name!r} already: give another name, and pass it to "
            "--callbacks"
        )
    callbacks_map[name] = SwiftCallback
