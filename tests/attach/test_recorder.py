"""A trace of a training: what was added, what came of it, and some of the scores, exactly as the
model had them.
"""

import numpy as np
import pytest
import torch

import equipoise
from equipoise.integrations.huggingface.doctor import doctor
from equipoise.trace import Trace, TraceError
from tests.attach.own_models import OwnModel, SoftmaxThenTopK, hidden_states
from tests.attach.tools import batch, forward, tiny


def train(balancing, steps=3, first=0):
    for seed in range(first, first + steps):
        forward(balancing.model, batch(seed, padded=True)).backward()
        balancing.step()


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
@pytest.mark.parametrize("rule", ["deepseek", "proportional", "quantile"])
def test_records_agree_with_what_was_routed(name, rule, tmp_path):
    balancing = equipoise.balance(tiny(name), rule, trace=tmp_path, trace_scores=1000)
    train(balancing)
    trace = Trace.open(tmp_path)
    assert trace.top_k == 2
    assert list(trace.layers) == [router.name for router in balancing.routers]
    assert trace.about["balancer"] == rule
    for router in balancing.routers:
        assert trace.steps(router.name) == [1, 2, 3]
        record = trace.record(router.name, 3)
        assert np.array_equal(record.shift_after, router.balancer.shift.numpy())
        assert record.loads.tolist() == balancing.metrics(loads=True)["loads"][router.name]
        scores = torch.as_tensor(record.scores)
        # all tokens, and no padding
        assert len(scores) == int(batch(0, padded=True)["attention_mask"].sum())
        shifted = scores + torch.as_tensor(record.shift)
        routing = equipoise.route(scores, 2, choose_by=shifted, groups=router.found.spec.groups)
        assert routing.loads.tolist() == record.loads.tolist()
        gap = record.loads.mean() - record.loads
        if rule == "quantile":
            assert np.isnan(record.step_size).all()
        else:
            np.testing.assert_allclose(
                record.shift_after - record.shift, record.step_size * gap, atol=1e-6
            )


@pytest.mark.parametrize("rule", ["moonlight", "smebu", "adagrad"])
def test_every_rule_that_follows_the_gap_has_step_sizes(rule, tmp_path):
    """As `equipoise train` records them: centred and averaged steps are multiples of the gap."""
    balancing = equipoise.balance(tiny("deepseek_v3"), rule, trace=tmp_path)
    train(balancing)
    trace = Trace.open(tmp_path)
    for layer in trace.layers:
        record = trace.record(layer, 3)
        gap = record.loads.mean() - record.loads
        moved = record.shift_after.astype(float) - record.shift
        # what the rule says it added; the shift is rounded to float32
        np.testing.assert_allclose((record.step_size * gap)[gap != 0], moved[gap != 0], atol=1e-8)


def test_a_router_that_is_not_updated_states_no_step(tmp_path):
    """Its shift stays, so the step of its last update would contradict the record."""
    balancing = equipoise.balance(tiny("mixtral"), "deepseek", trace=tmp_path)
    train(balancing, steps=1)
    for parameter in balancing.routers[0].found.layer.parameters():
        parameter.requires_grad_(False)
    train(balancing, steps=1, first=1)
    trace = Trace.open(tmp_path)
    resting, moving = (trace.record(router.name, 2) for router in balancing.routers[:2])
    assert np.array_equal(resting.shift, resting.shift_after)
    assert np.isnan(resting.step_size).all()
    assert np.isfinite(moving.step_size).all()


def test_an_annealed_shift_has_no_step_size(tmp_path):
    """It is also multiplied, which is no step of the rule; up to the last step of the annealing."""
    balancing = equipoise.balance(tiny("mixtral"), trace=tmp_path)
    train(balancing, steps=1)
    balancing.anneal(2)
    train(balancing, steps=2, first=1)
    trace = Trace.open(tmp_path)
    missing = [np.isnan(trace.record(0, step).step_size).all() for step in (1, 2, 3)]
    assert missing == [False, True, True]


def test_few_scores_are_kept(tmp_path):
    balancing = equipoise.balance(tiny("deepseek_v3"), trace=tmp_path, trace_scores=5)
    forward(balancing.model, batch(9)).backward()
    train(balancing, steps=1)
    assert 3 <= len(Trace.open(tmp_path).record(0, 1).scores) <= 5


def test_a_resumed_training_goes_on_with_its_trace(tmp_path):
    balancing = equipoise.balance(tiny("deepseek_v3"), trace=tmp_path / "trace")
    train(balancing, steps=2)
    balancing.save(tmp_path)
    train(balancing, steps=3, first=2)  # lost: the process was killed before it saved again
    resumed = equipoise.balance(tiny("deepseek_v3"), trace=tmp_path / "trace").load(tmp_path)
    train(resumed, steps=1, first=2)
    assert Trace.open(tmp_path / "trace").steps(0) == [1, 2, 3]
    with pytest.raises(TraceError, match="already holds a trace"):
        train(equipoise.balance(tiny("deepseek_v3"), trace=tmp_path / "trace"))


def test_the_doctor_reads_recorded_scores(tmp_path):
    model = tiny("deepseek_v3")
    balancing = equipoise.balance(model, "quantile", trace=tmp_path / "trace")
    train(balancing)
    model.save_pretrained(tmp_path / "model")
    (finding,) = doctor(tmp_path / "model", trace=tmp_path / "trace").findings
    assert finding.scores == "trace"
    assert 0 <= finding.changed_bf16 < 1


def test_the_header_has_target_and_groups(tmp_path):
    target = [4.0, *[1.0] * 7]
    balancing = equipoise.balance(
        tiny("deepseek_v3"), update_rate=0.01, target=target, trace=tmp_path
    )
    train(balancing)
    trace = Trace.open(tmp_path)
    assert list(trace.target) == target
    assert tuple(trace.about["groups"]) == balancing.routers[0].found.spec.groups[:2] == (4, 2)
    assert trace.about["sequence_length"] is None
    record = trace.record(0, 3)
    gap = np.array(target) / 11 * record.loads.sum() - record.loads
    np.testing.assert_allclose(record.shift_after - record.shift, record.step_size * gap, atol=1e-6)


def test_a_forward_that_fails_leaves_no_scores(tmp_path):
    """Its counts were taken back, and its scores stayed in the trace."""
    model = tiny("mixtral")
    balancing = equipoise.balance(model, trace=tmp_path, trace_scores=1000)
    forward(model, batch(0)).backward()
    last = model.model.layers[-1].register_forward_hook(_fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        forward(model, batch(1))
    last.remove()
    balancing.step()
    trace = Trace.open(tmp_path)
    for router in balancing.routers:
        record = trace.record(router.name, 1)
        assert len(record.scores) * 2 == record.loads.sum()


def _fail(*args):
    raise RuntimeError("out of memory")


class NamedRule:
    """A maker that is an object, and has no name of its own."""

    def __call__(self, num_experts, top_k):
        return equipoise.balancer("deepseek", num_experts, top_k=top_k)


def house_rule(num_experts, top_k):
    return NamedRule()(num_experts, top_k)


@pytest.mark.parametrize(
    ("maker", "name"), [(house_rule, "house_rule"), (NamedRule(), "NamedRule")]
)
def test_the_header_names_a_rule_made_by_a_function(maker, name, tmp_path):
    balancing = equipoise.balance(tiny("mixtral"), maker, trace=tmp_path)
    train(balancing, steps=1)
    assert Trace.open(tmp_path).about["balancer"] == name


@pytest.mark.parametrize("by", ["balance", "record"])
def test_256_scores_are_kept_where_no_number_is_given(by, tmp_path):
    """All of 256 tokens; of one more, every second, so that no more than 256 are kept."""
    options = {"trace": tmp_path} if by == "balance" else {}
    balancing = equipoise.balance(OwnModel(SoftmaxThenTopK), **options)
    if by == "record":
        balancing.record(tmp_path)
    for tokens in (256, 257):
        balancing.model(hidden_states(rows=1, length=tokens)).square().mean().backward()
        balancing.step()
    trace = Trace.open(tmp_path)
    assert [len(trace.record(0, step).scores) for step in (1, 2)] == [256, 129]
