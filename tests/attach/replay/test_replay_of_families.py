"""Every family, recorded and replayed: its own experts to the last bit, others exactly as asked."""

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attach.find.routing_spec import score_by_name
from tests.attach.families import WITH_BIAS, WITHOUT_BIAS, present
from tests.attach.tools import batch, forward

FAMILIES = present(WITH_BIAS + WITHOUT_BIAS)


def random_experts(routers, tokens, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        router.name: torch.rand(
            0 if router.name.endswith("vision_moe") else tokens,
            router.found.spec.num_experts,
            generator=rng,
        ).argsort(-1)[:, : router.found.spec.top_k]
        for router in routers
    }


def answer_of(model, inputs):
    output = model(**inputs)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_its_own_experts_give_its_own_logits(family):
    model, inputs = family.model().eval(), batch(padded=True)
    balancing = equipoise.balance(model, "deepseek")
    with torch.no_grad():
        for router in balancing.routers:
            # a shift that changes the choice
            router.shift.set(0.3 * torch.randn(router.found.spec.num_experts))
        plain = answer_of(model, inputs)
        with balancing.record_experts(margins=True) as recording:
            recorded = answer_of(model, inputs)
        with balancing.replay(recording) as replayed:
            again = answer_of(model, inputs)
    assert torch.equal(plain, recorded)
    assert torch.equal(plain, again)
    assert replayed.live_share == 0
    assert len(recording.layers) >= 1
    for layer in recording.layers:
        assert (recording.margins[layer] >= 0).all()
        assert np.isfinite(recording.levels[layer]).all()
        assert recording.gates[layer].sum(1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_other_experts_are_taken_with_the_routers_own_scores(family):
    model, inputs = family.model().eval(), batch(padded=True)
    balancing = equipoise.balance(model, "deepseek")
    given = random_experts(balancing.routers, inputs["input_ids"].numel())
    received, logits = {}, {}
    for router in balancing.routers:
        watch(router, received, logits)
    with torch.no_grad(), balancing.replay(given), balancing.record_experts() as recording:
        answer_of(model, inputs)
    for router in balancing.routers:
        name = router.name
        if name not in logits:
            assert name.endswith("vision_moe")
            continue
        assert torch.equal(torch.from_numpy(recording[name]).long(), given[name])
        if name in received:
            experts, gates = received[name]
            if family.name == "llama4":
                assert torch.equal(experts.sort(-1).values, given[name].sort(-1).values)
                continue
            assert torch.equal(experts.reshape(given[name].shape), given[name])
            check_gates(family, router, logits[name], given[name], gates.reshape(experts.shape))


def watch(router, received, logits):
    """What its experts are called with, and what its gate's scores are made of."""

    def see_experts(module, args, kwargs):
        values = [*args, *kwargs.values()]
        if len(values) >= 3:
            received[router.name] = (values[1].long(), values[2].detach())

    def see_gate(module, args, output):
        outputs = output if isinstance(output, tuple) else (output,)
        if type(module).__name__ == "Llama4Router":
            # its experts are given gates of all experts, 0 where they are not chosen
            chosen = outputs[0].topk(router.found.spec.top_k, dim=-1)
            received[router.name] = (chosen.indices, chosen.values)
        place = router.found.spec.logits_at
        logits[router.name] = outputs[place or 0].detach() if place is not None else None

    router.found.experts.register_forward_pre_hook(see_experts, with_kwargs=True)
    router.found.gate.register_forward_hook(see_gate)


def check_gates(family, router, logits, experts, gates):
    """Gates are the own scores of the given experts, up to one factor a token; or, where logits are
    ranked, softmax or sigmoid of those.
    """
    if logits is None:
        return
    logits = logits.reshape(-1, logits.shape[-1])
    scores = score_by_name(router.found.spec.score)(logits)[:, : router.found.spec.num_experts]
    scores = scores.gather(-1, experts)
    if router.found.spec.score == "identity":
        # gemma4's gate returns probabilities
        candidates = [scores.softmax(-1), scores.sigmoid(), scores]
    else:
        candidates = [scores]
    gates = gates[:, : experts.shape[-1]].float()
    errors = [(normal(gates) - normal(each)).abs().max() for each in candidates]
    assert min(errors) < 1e-4, (family, gates[:2], scores[:2])


def normal(gates):
    return gates / gates.sum(-1, keepdim=True)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_gradients_are_those_of_no_checkpointing(family):
    inputs = batch()
    gradients = []
    for checkpointing in (None, False, True):
        model = family.model().train()
        if checkpointing is not None:
            if not model.supports_gradient_checkpointing:
                continue
            model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
            model.enable_input_require_grads()
        balancing = equipoise.balance(model, "deepseek")
        given = random_experts(balancing.routers, inputs["input_ids"].numel())
        with pytest.warns(UserWarning, match="leave the shift"), balancing.replay(given):
            loss = forward(model, inputs)
        # after the replay has ended, as training loops do
        loss.backward()
        gradients.append(
            {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        )
        before = [router.applied_shift.clone() for router in balancing.routers]
        balancing.step()
        after = [router.applied_shift for router in balancing.routers]
        assert all(torch.equal(old, new) for old, new in zip(before, after))
    assert len(gradients) > 1 or not model.supports_gradient_checkpointing
    for name, value in gradients[0].items():
        assert value.isfinite().all(), name
        for other in gradients[1:]:
            assert torch.equal(value, other[name]), name
