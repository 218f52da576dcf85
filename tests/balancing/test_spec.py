"""What methods say of themselves is true, and a wrong entry is refused when it is registered."""

from typing import get_args

import pytest

from equipoise.balancing import Dual, balancers, method_spec, method_specs
from equipoise.balancing import spec as specs
from equipoise.balancing.spec import method
from equipoise.balancing.threshold import Threshold

every_method = pytest.mark.parametrize("spec", method_specs(), ids=lambda spec: spec.name)


@pytest.fixture
def registry(monkeypatch):
    """A registry that forgets what a test adds."""
    monkeypatch.setattr(specs, "_REGISTRY", dict(specs._REGISTRY))
    return specs._REGISTRY


def kind_of(made):
    if isinstance(made, Threshold):
        return "threshold"
    if not isinstance(made, Dual):
        return "batch solver"
    return "penalty" if made.penalties else "shift"


@every_method
def test_kind_and_needs_are_those_of_the_balancer(spec):
    made = spec.make(8, 2)
    needs = "runner-up" if made.needs_runner_up else "scores" if made.needs_scores else "loads"
    assert (spec.kind, spec.needs) == (kind_of(made), needs)
    assert spec.causal is isinstance(made, Dual | Threshold)
    assert spec.within_sequences is made.uses_sequences


@every_method
def test_every_rate_to_try_makes_a_balancer(spec):
    for rate in spec.rates_to_try:
        spec.make(8, 2, **spec.options_at(rate))


@every_method
def test_the_default_rate_is_the_default(spec):
    if spec.rate is None:
        assert spec.default_rate is None
        return
    parts = [
        str(spec.make(8, 2, **options)) for options in ({}, spec.options_at(spec.default_rate))
    ]
    assert parts[0] == parts[1]
    assert spec.default_rate > 0


def test_an_option_called_rate_is_named_as_the_rate():
    for spec in method_specs():
        for option in ("update_rate", "coefficient", "ema"):
            assert (option in spec.options) is (spec.rate == option)


def test_a_share_is_what_an_update_moves():
    quantile = method_spec("quantile")
    assert quantile.options_at(0.25) == {"ema": 0.75}
    assert quantile.default_rate == quantile.greatest_rate == 1.0
    with pytest.raises(ValueError, match=r"share of the way it goes, at most 1, not 1\.5"):
        quantile.options_at(1.5)


def test_the_papers_u_is_a_weight_or_a_step():
    assert method_spec("aux").update_rate_option == "coefficient"
    assert method_spec("deepseek").update_rate_option == "update_rate"
    assert method_spec("quantile").update_rate_option == "update_rate"  # which it refuses


def test_kinds_share_out_the_methods():
    kinds = [method_specs(kind) for kind in get_args(specs.Kind)]
    assert sorted(spec.name for kind in kinds for spec in kind) == sorted(balancers())


def test_one_entry_is_a_method(registry):
    @method(kind="shift", needs="loads", rate="update_rate", rates_to_try=(0.1,))
    def newest(num_experts, top_k, *, update_rate=0.1):
        return method_spec("deepseek").make(num_experts, top_k, update_rate=update_rate)

    assert balancers()[-1] == "newest"
    assert method_spec("newest").constructor is newest


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"kind": "price", "needs": "loads"},
            "kind is one of shift, penalty, batch solver, threshold, not 'p",
        ),
        ({"kind": "shift", "needs": "load"}, "needs one of loads, scores, runner-up, not 'load'"),
        ({"kind": "shift", "needs": "loads", "rate": "u"}, "its options are update_rate"),
        ({"kind": "shift", "needs": "loads", "rates_to_try": (1.0,)}, "rates to try but no rate"),
    ],
)
def test_wrong_entries_are_refused(registry, entry, message):
    def newest(num_experts, top_k, *, update_rate=0.1):
        raise AssertionError

    with pytest.raises(ValueError, match=message):
        method(**entry)(newest)
    assert "newest" not in registry


def test_a_name_is_taken_once(registry):
    def deepseek(num_experts, top_k):
        raise AssertionError

    with pytest.raises(ValueError, match="already is a method 'deepseek'"):
        method(kind="shift", needs="loads")(deepseek)


def test_the_arena_tries_what_has_a_shift_and_is_not_a_variant():
    """By default; changing the list changes every published table."""
    tried = {name for name in balancers() if method_spec(name).arena_default}
    assert tried == {
        "none", "deepseek", "proportional", "smebu", "adagrad", "quantile", "curvature",
    }  # fmt: skip
