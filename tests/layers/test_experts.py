"""Experts: every implementation has the output and the gradients of the slow twin."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from equipoise.layers import Experts, experts, reference_experts
from equipoise.layers.experts import loop
from equipoise.layers.experts.layer import fastest_implementation

E, D, F = 8, 12, 20
IMPLEMENTATIONS = list(experts.IMPLEMENTATIONS)
NAMES = ["output", "hidden", "gates", "gate_up", "down"]


def choices(case):
    """(T, K) experts: how the tokens of a batch may be spread."""
    generator = torch.Generator().manual_seed(1)
    some = torch.rand(50, E, generator=generator).topk(3).indices
    return {
        "usual": some,
        "one choice": some[:, :1],
        "all choices": some.new_tensor(range(E)).expand(20, E).contiguous(),
        "idle experts": some % 3,  # and the same expert twice
        "one expert": torch.full((50, 2), 5),
        "some without": some.where(torch.rand(50, 3, generator=generator) < 0.7, E),
        "all without": torch.full((50, 3), E),
        "one token": some[:1],
        "no tokens": some[:0],
    }[case]


CASES = [
    "usual",
    "one choice",
    "all choices",
    "idle experts",
    "one expert",
    "some without",
    "all without",
    "one token",
    "no tokens",
]


def make_layer(implementation="auto", dtype=torch.float64):
    torch.manual_seed(0)
    return Experts(E, D, F, implementation=implementation, init_std=0.5).to(dtype)


def make_batch(case="usual", dtype=torch.float64):
    chosen = choices(case)
    torch.manual_seed(2)
    hidden, gates = (
        torch.randn(len(chosen), D, dtype=torch.float64),
        torch.rand(chosen.shape, dtype=torch.float64),
    )
    return hidden.to(dtype).requires_grad_(), chosen, gates.to(dtype).requires_grad_()


def twin(layer):
    return lambda hidden, chosen, gates: reference_experts(
        hidden, chosen, gates, layer.gate_up, layer.down
    )


def output_and_gradients(call, layer, hidden, chosen, gates):
    output = call(hidden, chosen, gates)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).to(
        output.dtype
    )
    inputs = [hidden, gates, layer.gate_up, layer.down]
    return dict(
        zip(NAMES, [output.detach(), *torch.autograd.grad(output, inputs, upstream)], strict=True)
    )


def assert_alike(ours, theirs, **tolerance):
    for name in NAMES:
        torch.testing.assert_close(
            ours[name], theirs[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


def grouped_mm_in_any_dtype(rows, weights, offs):
    """What grouped_mm computes. Rows behind the last group it may leave as it finds them, which is
    NaN at worst.
    """
    blocks = rows.tensor_split(offs.tolist())
    unwritten = torch.full((len(blocks[-1]), weights.shape[2]), torch.nan, dtype=rows.dtype)
    return torch.cat(
        [*(block @ weight for block, weight in zip(blocks, weights, strict=False)), unwritten]
    )


@pytest.fixture
def doubles(monkeypatch):
    """torch's own grouped_mm knows no float64; the rest of "grouped" does."""
    monkeypatch.setattr(torch.nn.functional, "grouped_mm", grouped_mm_in_any_dtype)


@pytest.mark.parametrize("rows", [1, 30, 2048])
@pytest.mark.parametrize("case", CASES)
def test_loop_matches_twin(case, rows, monkeypatch):
    monkeypatch.setattr(loop, "ROWS_AT_ONCE", rows)
    layer, batch = make_layer("loop"), make_batch(case)
    theirs = output_and_gradients(twin(layer), layer, *batch)
    assert_alike(output_and_gradients(layer, layer, *batch), theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("implementation", ["grouped", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_others_match_twin(case, implementation):
    layer, batch = make_layer(implementation), make_batch(case)
    theirs = output_and_gradients(twin(layer), layer, *batch)
    assert_alike(output_and_gradients(layer, layer, *batch), theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES)
def test_single_precision_matches_twin(case, implementation):
    layer, batch = make_layer(implementation, torch.float32), make_batch(case, torch.float32)
    theirs = output_and_gradients(twin(layer), layer, *batch)
    assert_alike(output_and_gradients(layer, layer, *batch), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gates_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bf16_is_near(implementation, gates_dtype):
    torch.manual_seed(0)
    layer = Experts(
        E, 16, 24, implementation=implementation, init_std=0.5
    ).bfloat16()  # grouped_mm wants 16 bytes
    hidden, chosen, gates = torch.randn(50, 16), choices("some without"), torch.rand(50, 3)
    hidden, gates = hidden.bfloat16().requires_grad_(), gates.to(gates_dtype).requires_grad_()
    ours = output_and_gradients(layer, layer, hidden, chosen, gates)
    exact = copy.deepcopy(layer).double()
    wide = (
        hidden.detach().double().requires_grad_(),
        chosen,
        gates.detach().double().requires_grad_(),
    )
    theirs = output_and_gradients(twin(exact), exact, *wide)
    assert ours["output"].dtype == torch.bfloat16
    assert ours["gates"].dtype == gates_dtype
    for name in NAMES:
        error = (ours[name].double() - theirs[name]).abs().max() / theirs[name].abs().max()
        assert error < 0.02, f"{name}: {error}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_onto_is_added_and_gets_its_gradient(implementation, dtype):
    torch.manual_seed(0)
    layer = Experts(E, 16, 24, implementation=implementation, init_std=0.5).to(dtype)
    hidden, chosen, gates = (
        torch.randn(50, 16, dtype=dtype),
        choices("some without"),
        torch.rand(50, 3, dtype=dtype),
    )
    base = torch.randn(50, 16, dtype=dtype, requires_grad=True)
    apart = layer(hidden, chosen, gates) + base
    together = layer(hidden, chosen, gates, onto=base * 1)  # a tensor it may write to
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5  # apart, it is rounded twice
    torch.testing.assert_close(together, apart, rtol=tolerance, atol=tolerance)
    upstream = torch.randn(50, 16).to(dtype)
    inputs = [base, layer.gate_up, layer.down]
    for one, other in zip(
        *(torch.autograd.grad(out, inputs, upstream) for out in (together, apart)), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("implementation", ["loop", "padded"])
def test_gradients_pass_gradcheck(implementation):
    layer, (hidden, chosen, gates) = make_layer(implementation), make_batch("some without")
    weights = layer.gate_up, layer.down
    hidden, gates = hidden.detach()[:6].requires_grad_(), gates.detach()[:6].requires_grad_()

    def call(hidden, gates, gate_up, down):
        return experts.IMPLEMENTATIONS[implementation](hidden, chosen[:6], gates, gate_up, down)

    assert torch.autograd.gradcheck(call, (hidden, gates, *weights), fast_mode=True)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_no_expert_is_skipped(implementation):
    layer, (hidden, chosen, gates) = (
        make_layer(implementation, torch.float32),
        make_batch("usual", torch.float32),
    )
    chosen[7], chosen[9, 0] = E, E
    hidden = hidden.detach().index_fill(0, torch.tensor([7]), torch.nan).requires_grad_()
    output = layer(hidden, chosen, gates)
    output.sum().backward()
    assert output[7].count_nonzero() == 0
    assert hidden.grad[7].count_nonzero() == 0
    assert gates.grad[7].count_nonzero() == 0
    assert gates.grad[9, 0] == 0
    for gradient in (output, hidden.grad, gates.grad, layer.gate_up.grad, layer.down.grad):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "frozen", [("hidden",), ("gates",), ("gate_up", "down"), ("hidden", "gate_up"), ("down",)]
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_frozen_gets_no_gradient(implementation, frozen):
    layer, (hidden, chosen, gates) = (
        make_layer(implementation, torch.float32),
        make_batch("usual", torch.float32),
    )
    everything = {"hidden": hidden, "gates": gates, "gate_up": layer.gate_up, "down": layer.down}
    layer(hidden, chosen, gates).sum().backward()
    full = {name: tensor.grad for name, tensor in everything.items()}
    for name, tensor in everything.items():
        tensor.grad = None
        tensor.requires_grad_(name not in frozen)
    layer(hidden, chosen, gates).sum().backward()
    for name, tensor in everything.items():
        assert tensor.grad is None if name in frozen else torch.equal(tensor.grad, full[name])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_backward_twice_is_the_same(implementation):
    layer, (hidden, chosen, gates) = (
        make_layer(implementation, torch.float32),
        make_batch("usual", torch.float32),
    )
    total = layer(hidden, chosen, gates).square().sum()
    inputs = [hidden, gates, layer.gate_up, layer.down]
    first = torch.autograd.grad(total, inputs, retain_graph=True)
    second = torch.autograd.grad(total, inputs)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_checkpointing_changes_nothing(implementation, use_reentrant):
    layer, batch = (
        make_layer(implementation, torch.float32),
        make_batch("some without", torch.float32),
    )
    plain, inputs = layer(*batch), [batch[0], batch[2], layer.gate_up, layer.down]
    expected = torch.autograd.grad(plain.square().sum(), inputs)
    checkpoint(layer, *batch, use_reentrant=use_reentrant).square().sum().backward()
    for tensor, gradient in zip(inputs, expected, strict=True):
        assert torch.equal(tensor.grad, gradient)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_autocast_casts_like_linear(implementation):
    torch.manual_seed(0)
    layer = Experts(E, 16, 24, implementation=implementation, init_std=0.5)
    hidden, chosen, gates = (
        torch.randn(50, 16, requires_grad=True),
        choices("usual"),
        torch.rand(50, 3),
    )
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(hidden, chosen, gates)
        assert output.dtype == nn.Linear(16, 4)(hidden).dtype == torch.bfloat16
        # inside, where matrix multiplications would be cast once more
        output.float().sum().backward()
    assert hidden.grad.dtype == layer.gate_up.grad.dtype == layer.down.grad.dtype == torch.float32
    exact = reference_experts(hidden, chosen, gates, layer.gate_up, layer.down)
    assert (output - exact).abs().max() < 0.02 * exact.abs().max()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_backward_under_autocast(implementation):
    layer, batch = make_layer(implementation, torch.float32), make_batch("usual", torch.float32)
    inputs = [batch[0], layer.gate_up]
    expected = torch.autograd.grad(layer(*batch).square().sum(), inputs)
    total = layer(*batch).square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        gradients = torch.autograd.grad(total, inputs)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * other.abs().max().item())


def test_evaluation_keeps_nothing():
    layer, batch = make_layer(), make_batch()
    with torch.no_grad():
        evaluated = layer(*batch)
    assert evaluated.grad_fn is None
    assert torch.equal(evaluated, layer(*batch))


def test_only_inner_activations_are_saved():
    layer, batch = make_layer("loop"), make_batch()
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: sizes.append(saved.numel()) or saved, lambda saved: saved
    ):
        layer(*batch)
    choices_made = batch[1].numel()
    weights = layer.gate_up.numel() + layer.down.numel()
    assert sum(sizes) <= weights + batch[0].numel() + choices_made * (2 * F + 5)


def test_weights_travel():
    layer, batch = make_layer(dtype=torch.float32), make_batch(dtype=torch.float32)
    other = Experts(E, D, F)
    other.load_state_dict(layer.state_dict())
    for twin_layer in (other, copy.deepcopy(layer), layer.double().float()):
        assert torch.equal(twin_layer(*batch), layer(*batch))
    assert {name: tuple(weight.shape) for name, weight in layer.state_dict().items()} == {
        "gate_up": (E, 2 * F, D),
        "down": (E, D, F),
    }


def test_weights_start_normal():
    torch.manual_seed(0)
    layer = Experts(16, 64, 64, init_std=0.01)
    for weight in layer.parameters():
        assert weight.mean().abs() < 1e-4
        assert abs(weight.std().item() - 0.01) < 1e-4


def test_auto_knows_its_device():
    down = torch.empty(E, 16, 24)
    assert fastest_implementation(down, down) == "loop"
    assert fastest_implementation(down.to("meta"), down) == "grouped"
    assert fastest_implementation(down.to("meta"), torch.empty(E, 16, 23)) == "loop"
    assert fastest_implementation(down.to("meta", torch.float64), down) == "loop"


@pytest.mark.parametrize("implementation", ["auto", *IMPLEMENTATIONS])
def test_compiles(implementation):
    layer, batch = (
        make_layer(implementation, torch.float32),
        make_batch("some without", torch.float32),
    )
    compiled = torch.compile(layer, backend="aot_eager")
    expected = output_and_gradients(layer, layer, *batch)
    assert_alike(output_and_gradients(compiled, layer, *batch), expected)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 8))
def test_runs_cover_all_rows(counts, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "ROWS_AT_ONCE", rows)
        runs = list(loop.expert_runs(counts))
    assert [count for _, _, sizes in runs for count in sizes] == counts
    assert [e for each, _, _ in runs for e in range(each.start, each.stop)] == list(
        range(len(counts))
    )
    assert [n for _, each, _ in runs for n in range(each.start, each.stop)] == list(
        range(sum(counts))
    )
    for each, n, sizes in runs:
        assert len(sizes) == each.stop - each.start
        assert n.stop - n.start == sum(sizes)
        assert sum(sizes) <= max(rows, *sizes)


def test_errors_advise():
    with pytest.raises(ValueError, match="must be auto, loop, grouped, padded, not 'fast'"):
        Experts(E, D, F, implementation="fast")
    layer, (hidden, chosen, gates) = make_layer("loop"), make_batch()
    with pytest.raises(
        ValueError, match="index 9, but there are 8 experts: 0 to 7, and 8 for none"
    ):
        layer(hidden, chosen.clamp_min(0).index_fill(0, torch.tensor([3]), 9), gates)
    with pytest.raises(ValueError, match="flatten leading dimensions"):
        layer(hidden.view(1, -1, D), chosen, gates)
    with pytest.raises(ValueError, match="must both be"):
        layer(hidden, chosen, gates[:, :2])
    with pytest.raises(
        TypeError, match=r"hidden is torch\.float32, the weights are torch\.float64"
    ):
        layer(hidden.float(), chosen, gates)
