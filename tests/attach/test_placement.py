"""Parameters that another library keeps elsewhere: read by their whole shape, or refused with the
true reason.
"""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import equipoise
from equipoise.attach.state.fingerprint import weight_fingerprint
from tests.attach.tools import batch, forward, tiny


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_what_zero_3_has_cut_up_is_read_by_its_whole_shape(name):
    """Its attributes stand in for DeepSpeed's parameters; test_deepspeed.py tries the real ones."""
    model, whole = tiny(name), equipoise.balance(tiny(name))
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape
        parameter.data = torch.empty(0)
    balancing = equipoise.balance(model)
    assert [each.found.spec for each in balancing.routers] == [
        each.found.spec for each in whole.routers
    ]
    assert weight_fingerprint(balancing.routers) == "{}"
    assert weight_fingerprint(whole.routers) != "{}"


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


def test_a_bias_that_zero_3_cuts_up_later_is_named():
    """Balanced first, cut up then; its attributes stand in for DeepSpeed's own parameters.

    The bias of ernie4_5_moe is a parameter, that of most other families a buffer.
    """
    model = tiny("ernie4_5_moe")
    balancing = equipoise.balance(model)
    bias = balancing.routers[0].found.bias
    assert bias.where == "parameter"
    bias.tensor.ds_shape = bias.tensor.shape
    bias.tensor.data = torch.empty(0)
    with pytest.raises(ValueError, match=r"correction_bias is a parameter.*ZeRO-3.*Use ZeRO-2"):
        forward(model, batch())


def test_a_bias_that_zero_3_has_cut_up_before_is_named():
    model = tiny("ernie4_5_moe")
    for parameter in model.parameters():
        parameter.ds_shape = parameter.shape
        parameter.data = torch.empty(0)
    with pytest.raises(ValueError, match=r"mlp\.gate\.moe_statics\.e_score.*ZeRO-3.*Use ZeRO-2"):
        equipoise.balance(model)
