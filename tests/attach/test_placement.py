"""Parameters that another library keeps elsewhere are refused with the true reason."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import equipoise
from tests.attach.tools import tiny


def test_zero_3_is_named():
    model = tiny("mixtral")
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape
        parameter.data = torch.empty(0)
    with pytest.raises(ValueError, match=r"ZeRO-3 .* shape here is \(0,\), .*deepspeed.initialize"):
        equipoise.balance(model)


def test_gathered_parameters_are_not_refused():
    model = tiny("mixtral")
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape
    equipoise.balance(model)


class FullyShardedDataParallel(nn.Module):
    """Stands in for torch's, which needs a process group."""

    def __init__(self, module):
        super().__init__()
        self._fsdp_wrapped_module = module


def test_fsdp1_is_named():
    with pytest.raises(ValueError, match=r"wrapped by FSDP1.*before wrapping"):
        equipoise.balance(FullyShardedDataParallel(tiny("mixtral")))


def test_offloading_is_named():
    model = tiny("mixtral")
    gate = model.model.layers[0].mlp.gate
    gate._hf_hook = SimpleNamespace(offload=True)
    with pytest.raises(ValueError, match=r"accelerate offloads model\.layers\.0\.mlp\.gate"):
        equipoise.balance(model)
    gate._hf_hook = SimpleNamespace(hooks=[SimpleNamespace(offload=True)])
    with pytest.raises(ValueError, match="accelerate offloads"):
        equipoise.balance(model)
    gate._hf_hook = SimpleNamespace(offload=False)
    equipoise.balance(model)


@pytest.mark.parametrize("attribute", ["capacity_factor", "drop_tokens", "expert_capacity"])
def test_layers_that_may_drop_choices_are_told(attribute):
    model = tiny("mixtral")
    setattr(model.model.layers[1].mlp, attribute, 1.25)
    with pytest.warns(UserWarning, match=rf"layers\.1\.mlp has {attribute}"):
        equipoise.balance(model).detach()
    setattr(model.model.layers[1].mlp, attribute, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equipoise.balance(model)
