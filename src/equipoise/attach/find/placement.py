"""Models whose tensors are not where a forward needs them: refused with the true reason.

DeepSpeed ZeRO-3, FSDP1 and accelerate's offloading leave empty, flattened or absent tensors in a
model, and put them together around each forward of their own. Then no shape says what a gate is.
"""

from __future__ import annotations

from torch import nn

from equipoise.attach.find.routers import plain_name


def check_placement(model: nn.Module) -> None:
    """Refuse a model whose parameters another library keeps elsewhere."""
    for name, parameter in model.named_parameters():
        shape = getattr(parameter, "ds_shape", None)
        if shape is not None and parameter.shape != shape:
            raise ValueError(
                f"DeepSpeed ZeRO-3 holds {plain_name(name)} in parts: its shape here is "
                f"{tuple(parameter.shape)}, and {tuple(shape)} when gathered. Call "
                "equipoise.balance before deepspeed.initialize, on a model that was not made "
                "under deepspeed.zero.Init or an HfDeepSpeedConfig; or use ZeRO-2 or FSDP2"
            )
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
