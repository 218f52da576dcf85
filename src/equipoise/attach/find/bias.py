"""Bias: the tensor in a model that is added to the scores before the choice, wherever it lives and
whatever its dtype.

It is addressed by its owner and name, never held: `model.to()` replaces buffers. It is kept in
float32. Where a family loads it in bf16, the digits that were rounded away are lost, but no more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.attach.find.zero_parts import in_parts, take_whole


class Bias:
    """One router's correction bias, inside the model."""

    def __init__(self, owner: nn.Module, attribute: str, path: str) -> None:
        self.owner = owner
        self.attribute = attribute
        self.path = path
        """its name in the model's state_dict"""

    @property
    def tensor(self) -> Tensor:
        """As the model has it now."""
        value: Tensor = getattr(self.owner, self.attribute)
        return value

    @property
    def where(self) -> str:
        """Which of the two it is: a parameter or a buffer."""
        return "parameter" if self.attribute in self.owner._parameters else "buffer"

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def mark(self) -> tuple[object, ...]:
        """Changes whenever the tensor, its storage or its values are replaced; the values are not
        read for it.
        """
        value = self.tensor
        return id(value), value._version, value.dtype, 0 if _is_sharded(value) else value.data_ptr()

    def check_writable(self) -> None:
        """Refuse a tensor that has no values, or that can never change."""
        if self.tensor.is_meta:
            raise ValueError(
                f"{self.path} is on the meta device and has no values yet: load the model's "
                "weights, then balance it"
            )
        if self.tensor.is_inference():
            raise ValueError(
                f"{self.path} was made in torch.inference_mode() and can never be updated: make "
                "the model outside of it"
            )

    @torch.no_grad()
    def read(self) -> Tensor:
        """(E,) float32, a copy. Under FSDP2 a sharded parameter is gathered: every rank must call
        it.
        """
        self._take_whole()
        value = self.tensor.detach()
        if _is_sharded(value):
            value = value.full_tensor()  # type: ignore[attr-defined]
        return value.reshape(-1).to(torch.float32, copy=True)

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Set it in place, from (E,) float32."""
        self._take_whole()
        self._make_float32()
        mine = self.tensor.detach()
        values = values.to(mine.device).reshape(mine.shape)
        if _is_sharded(mine):
            from torch.distributed.tensor import distribute_tensor

            mesh, placements = mine.device_mesh, mine.placements  # type: ignore[attr-defined]
            theirs = distribute_tensor(values, mesh, placements, src_data_rank=None)
            mine.to_local().copy_(theirs.to_local())  # type: ignore[attr-defined]
        else:
            self.tensor.copy_(values)

    def _take_whole(self) -> None:
        """Under DeepSpeed ZeRO-3, which may have cut it up since it was found."""
        if in_parts(self.tensor):
            take_whole(self.owner, self.attribute, self.path)

    @torch.no_grad()
    def _make_float32(self) -> None:
        """Make it float32, keeping a parameter the object that optimizers know."""
        value = self.tensor
        if value.dtype == torch.float32:
            return
        if _is_sharded(value.detach()):
            raise TypeError(
                f"{self.path} is a sharded {value.dtype} parameter, and a bias must be float32: "
                "call equipoise.balance before fully_shard, or shard the model in float32 with a "
                "mixed precision policy"
            )
        if self.where == "parameter":
            value.data = value.data.float()
        else:
            self.owner._buffers[self.attribute] = value.float()


def _is_sharded(value: Tensor) -> bool:
    return hasattr(value, "full_tensor")
