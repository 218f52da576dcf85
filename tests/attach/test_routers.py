"""Routers are found by structure, in every family that has them."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from equipoise.attach.find.routers import find_routers, plain_name
from equipoise.routing import Groups
from tests.attach.families import (
    NEWEST,
    NOT_BUILT,
    REFUSED,
    SINCE,
    VERSION,
    WITH_BIAS,
    WITHOUT_BIAS,
    Family,
    present,
    returns_logits,
    too_old,
)
from tests.attach.tools import tiny

FAMILIES = present(WITH_BIAS) + present(WITHOUT_BIAS)
OLDER_AND_REFUSED = [
    family for family in too_old(WITH_BIAS + WITHOUT_BIAS) if SINCE[family.name][1]
]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_router_is_found(family):
    found = find_routers(family.model())
    assert found.routers
    assert len(found.left_alone) == family.left_alone
    for router in found.routers:
        spec = router.spec
        assert (spec.num_experts, spec.top_k) == (family.num_experts, family.top_k)
        assert spec.bias == family.bias
        assert spec.score in _scores(family)
        assert spec.groups == (Groups(4, 2) if family.grouped else None)


def _scores(family):
    """Before 5.6 many gates returned softmaxed scores where later ones return logits, and some
    nothing at all.
    """
    if not returns_logits(family):
        return (None,)
    return (
        (family.score, "identity") if VERSION < (5, 6) and family.bias is None else (family.score,)
    )


@pytest.mark.skipif(VERSION < NEWEST, reason="an older transformers lacks some families")
def test_the_newest_has_them_all():
    assert FAMILIES == WITH_BIAS + WITHOUT_BIAS


@pytest.mark.parametrize("family", OLDER_AND_REFUSED, ids=str)
def test_older_forms_are_refused_by_name(family):
    with pytest.raises(ValueError, match=SINCE[family.name][1]):
        find_routers(family.model())


@pytest.mark.parametrize("family", present(WITH_BIAS), ids=str)
def test_the_bias_is_the_models_own(family):
    model = family.model()
    for router in find_routers(model).routers:
        assert model.state_dict()[router.bias.path].data_ptr() == router.bias.tensor.data_ptr()
        assert router.bias.tensor.numel() == router.spec.num_experts


def test_looking_touches_nothing():
    family = next(family for family in FAMILIES if family.name == "deepseek_v3")
    model = family.model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    find_routers(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_models_on_the_meta_device_are_read():
    family = next(family for family in FAMILIES if family.name == "glm4_moe")
    with torch.device("meta"):
        model = family.model()
    assert find_routers(model).routers[0].spec.score == "sigmoid"


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_other_choosers_are_refused_by_name(name, reason):
    if name not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {name}")
    family = Family(name, overrides={"num_experts_per_tok": 1} if name == "zaya" else {})
    model = family.model()
    with pytest.raises(ValueError, match=reason) as raised:
        find_routers(model)
    block = str(raised.value).split("skip=['")[1].split("']")[0]
    assert hasattr(model.get_submodule(block), "experts")


def test_a_bias_that_is_not_of_the_choice_is_refused_by_name():
    """One by its name in the gate or the block must act as one; elsewhere the name says nothing."""
    model = tiny("mixtral")
    block = model.model.layers[0].mlp
    block.experts.register_buffer("expert_bias", torch.zeros(8))
    find_routers(model)
    for owner in (block, block.gate):
        owner.register_buffer("e_score_correction_bias", torch.zeros(8))
        with pytest.raises(ValueError, match=r"holds e_score_correction_bias, but it is no corr"):
            find_routers(model)
        del owner.e_score_correction_bias
    inner = nn.Linear(2, 2)
    inner.register_buffer("expert_bias", torch.zeros(8))
    block.gate.inner = inner
    with pytest.raises(ValueError, match=r"holds inner\.expert_bias, but"):
        find_routers(model)


@pytest.mark.parametrize("name", ["deepseek_v3", "mistral4"])
def test_groups_that_cannot_hold_top_k_are_refused_by_name(name):
    if name not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {name}")
    sizes = {"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3, "head_dim": 16}
    family = Family(name, overrides=sizes)
    with pytest.raises(ValueError, match=r"mlp keeps 1 of 4 groups, of 2 experts .* top-3.*skip="):
        find_routers(family.model())


def test_skipped_routers_are_listed():
    model = Family("mixtral").model()
    found = find_routers(model, skip=["model.layers.0.*"])
    assert [router.name for router in found.routers] == ["model.layers.1.mlp"]
    assert found.left_alone == [("model.layers.0.mlp", "skipped on request")]


class TwoGates(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.Linear(8, 8)
        self.left_gate = nn.Linear(8, 4)
        self.right_gate = nn.Linear(8, 4)


def test_two_candidates_are_refused_with_their_names():
    with pytest.raises(ValueError, match="left_gate, right_gate"):
        find_routers(nn.ModuleDict({"block": TwoGates()}))


def test_dense_models_are_refused():
    with pytest.raises(ValueError, match="has no router to balance"):
        find_routers(nn.Linear(4, 4))


def test_wrappers_do_not_change_names():
    assert plain_name("base_model.model.model.layers.1.mlp") == "model.layers.1.mlp"
    assert plain_name("module._orig_mod.model.layers.1.mlp") == "model.layers.1.mlp"


def test_no_family_is_forgotten():
    """Every model of transformers that calls `self.experts(` is in one of the tables."""
    listed = {family.name for family in WITH_BIAS + WITHOUT_BIAS} | {
        name.replace("-", "_") for name in REFUSED
    }
    root = importlib.util.find_spec("transformers.models").submodule_search_locations[0]
    calls = {
        path.parent.name
        for path in Path(root).glob("*/modeling_*.py")
        if "self.experts(" in path.read_text()
    } - {"vitpose_backbone"}  # its experts are chosen by the dataset
    assert calls <= listed | set(NOT_BUILT)


def test_skipping_is_by_patterns_that_match():
    first = find_routers(tiny("deepseek_v3")).routers[0].name
    with pytest.raises(ValueError, match=r"matches no router: they are .*" + first):
        find_routers(tiny("deepseek_v3"), skip=["no.such.layer"])
    # its only router, by a name and not letter by letter
    with pytest.raises(ValueError, match="skipped on request"):
        find_routers(tiny("deepseek_v3"), skip=first)
