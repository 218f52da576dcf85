"""Steps are taken once per optimizer step, skipped ones are dropped and reported, and all can be
undone.
"""

import copy

import pytest
import torch
from torch import nn

import equipoise
from equipoise.balancing.penalties import AuxiliaryLoss
from tests.attach.tools import batch, choice, forward, shift_of, tiny


def train(model, optimizer, steps=2, each=None):
    for seed in range(steps):
        forward(model, batch(seed)).backward()
        optimizer.step()
        if each is not None:
            each()
        optimizer.zero_grad()


def test_an_optimizer_steps_it_by_itself():
    model, twin = tiny("deepseek_v3"), tiny("deepseek_v3")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    balancing = equipoise.balance(model, optimizer=optimizer)
    train(model, optimizer)
    own = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    other = equipoise.balance(twin)
    train(twin, own, each=other.step)
    assert balancing.metrics() == other.metrics()
    assert balancing.metrics()["step"] == 2
    assert torch.equal(shift_of(balancing), shift_of(other))


def test_accelerates_optimizer_is_followed():
    accelerator = pytest.importorskip("accelerate").Accelerator(
        cpu=True, gradient_accumulation_steps=2
    )
    model = tiny("deepseek_v3")
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    balancing = equipoise.balance(model, optimizer=optimizer)
    for seed in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(forward(model, batch(seed)))
            optimizer.step()
            optimizer.zero_grad()
    measured = balancing.metrics(loads=True)
    assert (measured["step"], measured["dropped_steps"]) == (2, 0)
    assert {sum(loads) for loads in measured["loads"].values()} == {2 * 72}


def test_zeroing_between_forward_and_backward_drops_nothing():
    model = tiny("deepseek_v3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancing = equipoise.balance(model, optimizer=optimizer)
    for _ in range(2):
        loss = forward(model, batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert balancing.metrics()["dropped_steps"] == 0


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_skipped_step_is_dropped_and_reported(name, checkpointed):
    model, twin = tiny(name), tiny(name)
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        model.enable_input_require_grads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancing = equipoise.balance(model, optimizer=optimizer)
    forward(model, batch(5)).backward()
    with pytest.warns(UserWarning, match=r"dropped \(1 so far\)"):
        optimizer.zero_grad()  # and no step before it: a guard found an infinite gradient
    train(model, optimizer, steps=1)
    other = equipoise.balance(twin)
    forward(twin, batch(0)).backward()
    other.step()
    assert balancing.metrics(loads=True)["loads"] == other.metrics(loads=True)["loads"]
    assert balancing.metrics()["dropped_steps"] == 1


def test_a_grad_scaler_that_skips_is_noticed():
    model = tiny("deepseek_v3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancing = equipoise.balance(model, optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    (scaler.scale(forward(model, batch())) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert balancing.metrics()["step"] == 0
    with pytest.warns(UserWarning, match="dropped"):
        optimizer.zero_grad()


def test_a_step_without_a_forward_is_refused():
    balancing = equipoise.balance(tiny("deepseek_v3"))
    with pytest.raises(RuntimeError, match="nothing was counted since the last step"):
        balancing.step()


def test_a_bypassed_router_is_named():
    model = tiny("solar_open")
    balancing = equipoise.balance(model)
    block = model.model.layers[1].mlp
    experts = block.experts

    def fused_kernel(hidden):
        return experts.forward(hidden[0], *choice(block, hidden)).unsqueeze(0)

    block.forward = fused_kernel
    inputs = {**batch(), "input_ids": batch()["input_ids"][:1], "attention_mask": None}
    forward(model, inputs).backward()
    with pytest.raises(RuntimeError, match=r"not counted: model\.layers\.1\.mlp"):
        balancing.step()


def test_a_model_is_balanced_once():
    model = tiny("mixtral")
    balancing = equipoise.balance(model)
    with pytest.raises(ValueError, match="balanced already"):
        equipoise.balance(model)
    equipoise.balance(balancing.detach())


@pytest.mark.parametrize("name", ["deepseek_v3", "ernie4_5_moe", "mixtral", "dbrx", "llama4"])
def test_detaching_gives_the_model_back(name):
    model = tiny(name)
    before, attributes = copy.deepcopy(model), [set(vars(module)) for module in model.modules()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancing = equipoise.balance(model, "none", optimizer=optimizer)
    train(model, optimizer)
    assert balancing.detach() is model
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert torch.equal(forward(model, batch()), forward(before, batch()))
    assert not any(
        hooks
        for module in model.modules()
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._state_dict_pre_hooks,
        )
    )
    assert "zero_grad" not in vars(optimizer)
    train(model, optimizer)  # nothing is left that would complain


@pytest.mark.parametrize(
    "name", ["deepseek_v3", "mixtral", "gpt_oss", "gemma4", "mistral4", "cohere2_moe"]
)
def test_the_shift_never_enters_a_gate(name):
    """A common shift of all experts changes no choice: outputs must not move by a bit."""
    model = tiny(name).eval()
    before = forward(model, batch())
    balancing = equipoise.balance(model, "none")
    for router in balancing.routers:
        router.shift.mean = torch.tensor(64.0, dtype=torch.float64)
        router.shift.apply()
        assert (router.applied_shift == 64).all()
    torch.testing.assert_close(forward(model, batch()), before, rtol=1e-6, atol=0)


def test_metrics_name_the_worst_layer():
    model = tiny("solar_open")
    balancing = equipoise.balance(model)
    assert balancing.metrics() == {"step": 0, "dropped_steps": 0, "layers": {}}
    forward(model, batch()).backward()
    balancing.step()
    measured = balancing.metrics(loads=True)
    layers = measured["layers"]
    assert measured["imbalance"] == pytest.approx(
        sum(layer["imbalance"] for layer in layers.values()) / 2
    )
    assert layers[measured["worst_layer"]]["max_violation"] == max(
        layer["max_violation"] for layer in layers.values()
    )
    assert set(measured["loads"]) == set(layers)
    assert measured["worst_layer"] in balancing.report()


def test_former_names_say_the_new_ones():
    balancing = equipoise.balance(tiny("deepseek_v3"))
    with pytest.warns(DeprecationWarning, match=r"balancing\.routers"):
        (router,) = balancing.seats
    with pytest.warns(DeprecationWarning, match="applied_shift"):
        assert router.offered is router.applied_shift


def test_the_table_says_what_was_found():
    shown = str(equipoise.balance(tiny("deepseek_v4")))
    assert "sqrt_softplus" in shown
    assert "gate.e_score_correction_bias (buffer)" in shown
    assert "left alone: model.layers.0.mlp (hash router" in shown


def test_annealing_leaves_nothing_behind():
    model, twin = tiny("mixtral"), tiny("mixtral")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancing = equipoise.balance(model, update_rate=0.25, optimizer=optimizer)
    train(model, optimizer, steps=3)
    start = shift_of(balancing)
    balancing.anneal(4)
    train(model, optimizer, steps=1)
    torch.testing.assert_close(shift_of(balancing), start * 3 / 4)
    train(model, optimizer, steps=3)
    assert not shift_of(balancing).any()
    assert torch.equal(forward(balancing.detach(), batch()), forward(twin, batch()))


def test_annealing_brings_a_bias_to_rest():
    model = tiny("deepseek_v3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancing = equipoise.balance(model, update_rate=0.25, optimizer=optimizer)
    balancing.anneal(2)
    train(model, optimizer, steps=2)
    rest = shift_of(balancing)
    assert rest.any()
    train(model, optimizer, steps=2)
    assert torch.equal(shift_of(balancing), rest)


def test_annealing_takes_one_step_at_least():
    model = tiny("mixtral")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancing = equipoise.balance(model, update_rate=0.25, optimizer=optimizer)
    train(model, optimizer, steps=1)
    assert shift_of(balancing).any()
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        balancing.anneal(0)
    balancing.anneal(1)
    train(model, optimizer, steps=1)
    assert not shift_of(balancing).any()
    # and it stays there: the rule is frozen
    train(model, optimizer, steps=1)
    assert not shift_of(balancing).any()


def test_sums_are_over_the_ranks_of_the_group(monkeypatch):
    model, given = tiny("mixtral"), []

    def reduce(tallies, group):
        given.append((sorted(tallies), group))
        return tallies

    monkeypatch.setattr("equipoise.attach.stepping.reduce_across_devices", reduce)
    group = object()
    balancing = equipoise.balance(model, group=group)
    forward(model, batch()).backward()
    balancing.step()
    assert given == [(["model.layers.0.mlp", "model.layers.1.mlp"], group)]
    assert shift_of(balancing).any()


@pytest.mark.parametrize("name", ["base", "expert_choice"])
def test_methods_without_a_shift_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} has no shift"):
        equipoise.balance(tiny("deepseek_v3"), name)


def test_penalties_are_refused():
    with pytest.raises(ValueError, match="aux adds a penalty"):
        equipoise.balance(tiny("deepseek_v3"), "aux")


def test_what_a_function_makes_is_refused_by_its_class():
    def make_base(num_experts, top_k):
        return equipoise.balancer("base", num_experts, top_k=top_k)

    def make_with_a_penalty(num_experts, top_k):
        return equipoise.balancer("deepseek", num_experts, top_k=top_k).carry(AuxiliaryLoss(0.1))

    with pytest.raises(ValueError, match=r"^Base has no shift"):
        equipoise.balance(tiny("deepseek_v3"), make_base)
    with pytest.raises(ValueError, match=r"^Dual adds a penalty"):
        equipoise.balance(tiny("deepseek_v3"), make_with_a_penalty)


def test_a_refused_balance_leaves_no_trace():
    model = tiny("deepseek_v3")
    with pytest.raises(TypeError, match="did you mean 'update_rate'"):
        equipoise.balance(model, "deepseek", update_rat=1)
    equipoise.balance(model)


def test_balancers_may_be_made_by_a_function():
    made = []

    def make(num_experts, top_k):
        made.append((num_experts, top_k))
        return equipoise.balancer("moonlight", num_experts, top_k=top_k)

    equipoise.balance(tiny("deepseek_v3"), make)
    assert made == [(8, 2)]


def test_models_that_are_not_built_of_transformers_parts():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 4, bias=False)
            self.experts = Sum()

        def route_tokens_to_experts(self, logits):
            weights, indices = logits.softmax(-1).topk(2)
            return indices, weights

        def forward(self, hidden):
            return self.experts(hidden, *self.route_tokens_to_experts(self.gate(hidden)))

    class Sum(nn.Module):
        def forward(self, hidden, indices, weights):
            return hidden * weights.sum(-1, keepdim=True)

    model = Block()
    balancing = equipoise.balance(model, update_rate=0.5)
    model(torch.randn(10, 8)).sum().backward()
    balancing.step()
    assert balancing.metrics(loads=True)["loads"][""]
    assert shift_of(balancing).any()


def test_following_can_end():
    model = tiny("deepseek_v3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancing = equipoise.balance(model, optimizer=optimizer)
    train(model, optimizer, steps=1)
    balancing.unfollow()
    train(model, optimizer, steps=1)
    assert balancing.metrics()["step"] == 1
    balancing.step()  # by hand again


def test_a_sharded_bf16_bias_leaves_no_half_attached_model(monkeypatch):
    from equipoise.attach.count.balanced_router import BalancedRouter

    model, attach = tiny("solar_open"), BalancedRouter.attach

    def second_fails(router):
        if router.name.endswith("1.mlp"):
            raise TypeError("sharded")
        attach(router)

    monkeypatch.setattr(BalancedRouter, "attach", second_fails)
    with pytest.raises(TypeError, match="sharded"):
        equipoise.balance(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_torch_that_hides_its_backward_is_refused(monkeypatch):
    from equipoise.routing import recomputation as context

    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: -1)
    context.check_backward_is_seen.cache_clear()
    with pytest.raises(RuntimeError, match="counted twice"):
        equipoise.balance(tiny("deepseek_v3"))
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    with pytest.raises(RuntimeError, match="counted twice"):
        equipoise.balance(tiny("deepseek_v3"))


def test_undoing_one_leaves_the_other_in_place():
    one, other = tiny("deepseek_v3"), tiny("deepseek_v3")
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    first, second = (equipoise.balance(model, optimizer=optimizer) for model in (one, other))
    first.detach()
    forward(other, batch(0)).backward()
    with pytest.warns(UserWarning, match="a step was skipped"):
        optimizer.zero_grad()
    assert second.metrics()["dropped_steps"] == 1


def test_a_users_own_zero_grad_is_put_back():
    model = tiny("deepseek_v3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = optimizer.zero_grad = lambda set_to_none=True: None
    equipoise.balance(model, optimizer=optimizer).detach()
    assert optimizer.zero_grad is own


@pytest.mark.parametrize("name", ["solar_open", "mixtral"])
def test_a_skipped_step_is_noticed_where_one_router_rests(name):
    """A layer in evaluation mode counts nothing; the gradients of the others wait all the same."""
    model = tiny(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancing = equipoise.balance(model, optimizer=optimizer)
    resting, _ = balancing.routers
    resting.block.eval()
    assert not balancing.gradients_wait
    forward(model, batch()).backward()
    assert not resting.count.tallies
    assert balancing.gradients_wait
    with pytest.warns(UserWarning, match="a step was skipped"):
        optimizer.zero_grad()
