"""Models whose tensors are not where a forward needs them: refused with the true reason.

FSDP1 and accelerate's offloading leave flattened or absent tensors in a model, and put them
together around each forward of their own. Then no shape says what a gate is. (DeepSpeed ZeRO-3
leaves empty ones, but notes their shapes: zero_parts.py.)
"""

from __future__ import annotations

from torch import nn

from equipoise.attach.find.routers import plain_name


def check_placement(model: nn.Module) -> None:
    """Refuse a model whose parameters another library keeps elsewhere."""
    for name, module in model.named_modules():
        kinds = {each.__name__ for each in type(module).__mro__}
        if "FullyShardedDataParallel" in kinds:
            raise ValueError(
                f"{plain_name(name) or 'the model'} is wrapped by FSDP1, which flattens its "
                "parameters: use FSDP2 (fully_shard), or call equipoise.balance before wrapping"
            )
        hook = getattr(module, "_hf_hook", None)
        if any(getattr(each, "offload", False) for each in (hook, *getattr(hook, "hooks", ()))):
            raise ValueError(
                f"accelerate offloads {plain_name(name) or 'the model'}: between forwards its "
                "tensors are on the meta device. Offloading is for inference: to train, load the "
                "model without cpu_offload, disk_offload or an offloading device_map"
            )
