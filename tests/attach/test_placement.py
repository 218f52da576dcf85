"""Parameters that another library keeps elsewhere: read by their whole shape, or refused with the
true reason.
"""

import contextlib
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import equipoise
from equipoise.attach.state.fingerprint import weight_fingerprint
from tests.attach.tools import batch, forward, shift_of, tiny


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


@pytest.fixture
def cut_up(monkeypatch):
    """A function that cuts parameters up as DeepSpeed does, which it stands in for.

    test_deepspeed.py tries the real one.
    """
    wholes, kept = {}, []

    class GatheredParameters(contextlib.ExitStack):
        def __init__(self, parameters):
            super().__init__()
            for parameter in parameters:
                parameter.data = wholes[parameter]
                self.callback(setattr, parameter, "data", torch.empty(0))

    zero = SimpleNamespace(
        GatheredParameters=GatheredParameters,
        register_external_parameter=lambda owner, parameter: kept.append((owner, parameter)),
    )
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(zero=zero))

    def cut(parameters):
        for parameter in parameters:
            wholes[parameter] = parameter.data
            parameter.ds_shape = parameter.shape
            parameter.data = torch.empty(0)
        return kept

    return cut


def test_a_bias_that_zero_3_cuts_up_later_is_taken_whole(cut_up):
    """The bias of ernie4_5_moe is a parameter, that of most other families a buffer."""
    model, whole = tiny("ernie4_5_moe"), tiny("ernie4_5_moe")
    balancing, expected = equipoise.balance(model), equipoise.balance(whole)
    bias = balancing.routers[0].found.bias
    assert bias.where == "parameter"
    parameter = bias.tensor
    kept = cut_up([router.found.bias.tensor for router in balancing.routers])
    for each, one in ((model, balancing), (whole, expected)):
        forward(each, batch()).backward()
        one.step()
    assert bias.where == "buffer"
    assert bias.tensor.flatten().tolist() == shift_of(expected).tolist()
    assert bias.path in model.state_dict()
    # DeepSpeed still gathers what it gathered in the first step
    assert kept[0] == (bias.owner, parameter)


def test_a_bias_that_zero_3_has_cut_up_before_is_taken_whole(cut_up):
    model = tiny("ernie4_5_moe")
    gate = model.model.layers[1].mlp.gate
    gate.moe_statics.e_score_correction_bias.data += torch.arange(8.0)
    seen = []
    gate.register_forward_hook(lambda *_: seen.append("a hook that gathers"))
    cut_up(model.parameters())
    balancing = equipoise.balance(model)
    bias = balancing.routers[0].found.bias
    assert bias.where == "buffer"
    assert bias.tensor.flatten().tolist() == [*range(8)]
    assert seen == []
    assert gate._forward_hooks


def test_a_trained_bias_in_parts_is_refused(cut_up):
    model = tiny("ernie4_5_moe")
    bias = model.model.layers[1].mlp.gate.moe_statics.e_score_correction_bias
    bias.requires_grad_()
    cut_up(model.parameters())
    with pytest.raises(ValueError, match=r"that is trained.*ZeRO-3 holds it in parts \(\(1, 8\)"):
        equipoise.balance(model)
    # nothing was replaced
    assert model.model.layers[1].mlp.gate.moe_statics.e_score_correction_bias is bias
