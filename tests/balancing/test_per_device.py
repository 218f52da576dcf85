"""One price per device: sums over a device's experts, exactly, under every direction and part."""

import copy
import itertools

import pytest
import torch

import equipoise
from equipoise import device_loads, idle_share
from equipoise.balancing import Dual
from equipoise.balancing.shift.curvature import CurvatureMove
from equipoise.balancing.shift.directions import Direction, LoadGap
from equipoise.balancing.shift.flips import FlipMove
from equipoise.balancing.shift.geometry import hypentropy
from equipoise.balancing.shift.parts import (
    EMA,
    AdaGrad,
    Center,
    Clip,
    Momentum,
    Scale,
    Sign,
    Tanh,
)  # fmt: skip
from equipoise.balancing.shift.per_device import PerDevice, device_of_experts
from equipoise.balancing.shift.quantile import QuantileMove, expert_leads
from tests.contracts.table import (
    NUM_EXPERTS,
    TOP_K,
    assert_same_state,
    assert_same_tally,
    exact_scores,
    forward,
)  # fmt: skip

E, K, DEVICES = NUM_EXPERTS, TOP_K, 4
SCATTERED = [3, 1, 0, 2] * 4
DIRECTIONS = {
    "counts": lambda: LoadGap("counts"),
    "tokens": lambda: LoadGap("tokens"),
    "relative": lambda: LoadGap("relative"),
    "quantile": QuantileMove,
    "flips": FlipMove,
    "curvature": CurvatureMove,
}
PARTS = {
    "sign": lambda: [Center(), Sign(), Scale(1e-2)],
    "tanh and mean": lambda: [Tanh(2.0), Center(), EMA(0.5), Scale(1e-2)],
    "heavy ball": lambda: [Clip(0.5), Momentum(0.5), Scale(1e-2)],
    "adagrad": lambda: [AdaGrad(), Scale(1e-2)],
}
every_direction = pytest.mark.parametrize("make", DIRECTIONS.values(), ids=DIRECTIONS)


def train(balancer, steps=4):
    for seed in range(steps):
        balancer.update(forward(balancer, exact_scores(seed=seed))[1])
    return balancer


@every_direction
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_experts_of_a_device_share_a_shift(make, parts):
    for geometry in ({}, {"geometry": hypentropy(1e-2)}):
        balancer = train(Dual(E, K, PerDevice(make(), SCATTERED), parts(), **geometry))
        by_device = {balancer.shift[k].item() for k in range(E)}
        assert 1 < len(by_device) <= DEVICES
        assert all(
            balancer.shift[k] == balancer.shift[l]
            for k, l in itertools.combinations(range(E), 2)
            if SCATTERED[k] == SCATTERED[l]
        )


@every_direction
def test_a_device_of_one_expert_is_that_expert(make):
    """The twin: with E devices every number is what it is without any, to the last bit."""
    target = [2.0] * 4 + [1.0] * 12
    plain = train(Dual(E, K, make(), [Scale(0.1)], target=target))
    devices = train(Dual(E, K, PerDevice(make(), E), [Scale(0.1)], target=target))
    assert plain.shift.any()
    assert torch.equal(plain.shift, devices.shift)
    mine = dict(plain.direction.state_dict())
    theirs = dict(devices.direction.direction.state_dict())
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_the_gap_is_that_of_the_device():
    loads = torch.tensor([30, 10, 10, 10])
    balancer = Dual(4, 2, PerDevice(LoadGap("counts"), 2))
    assert step_of(balancer, loads) == [-10.0, -10.0, 10.0, 10.0]
    # relative to 30 tokens; and per token and place: 30 tokens, 2 places each
    assert step_of(Dual(4, 2, PerDevice(LoadGap("relative"), 2)), loads) == pytest.approx(
        [-1 / 3, -1 / 3, 1 / 3, 1 / 3]
    )
    assert step_of(Dual(4, 2, PerDevice(LoadGap("tokens"), 2)), loads) == pytest.approx(
        [-1 / 6, -1 / 6, 1 / 6, 1 / 6]
    )
    # weights of experts are summed: 3 to 1
    unequal = Dual(4, 1, PerDevice(LoadGap("counts"), [1, 0, 0, 1]), target=[2, 1, 0.5, 4])
    assert step_of(unequal, torch.tensor([0, 0, 0, 60])) == [-12.0, 12.0, 12.0, -12.0]


def step_of(balancer, loads):
    tally = equipoise.Tally(loads, loads.unsqueeze(0), torch.tensor(0))
    return balancer.direction(tally, balancer.target).tolist()


@pytest.mark.parametrize("load", [7, 30, 10**12 + 1])
def test_even_devices_stay_whatever_their_experts_do(load):
    loads = torch.tensor([[load, 0, 0], [0, load, 0], [1, 1, load - 2]]).flatten()
    balancer = Dual(9, 2, PerDevice(LoadGap("counts"), 3), [Scale(1.0)])
    assert step_of(balancer, loads) == [0.0] * 9


@pytest.mark.parametrize("devices", [DEVICES, 2, SCATTERED])
def test_the_quantile_is_that_of_all_leads_of_a_device(devices):
    """By sorting the leads of a device's experts together, in float64; within one bin."""
    balancer = Dual(E, K, PerDevice(QuantileMove(bins=1024), devices))
    scores = exact_scores()
    routing, tally = forward(balancer, scores)
    lead = expert_leads(scores.double(), routing, balancer.shift.double())
    place = device_of_experts(devices, E)
    number = int(place.max()) + 1
    want = len(scores) * K / number
    assert want == int(want)
    for device, step in zip(range(number), distinct_steps(balancer, tally, place), strict=True):
        ordered = lead[:, place == device].flatten().sort(descending=True).values
        middle = (ordered[int(want) - 1] + ordered[int(want)]) / 2
        assert step == pytest.approx(-float(middle), abs=2 * 2 / 1024)


def distinct_steps(balancer, tally, place):
    step = balancer.direction(tally, balancer.target)
    return [float(step[place == device][0]) for device in range(int(place.max()) + 1)]


def test_only_tokens_between_devices_hesitate():
    balancer = train(Dual(E, K, PerDevice(CurvatureMove(), SCATTERED), [Center()]))
    scores = exact_scores(seed=9)
    routing, tally = forward(balancer, scores)
    slow = torch.zeros(DEVICES, DEVICES, dtype=torch.int64)
    bandwidth = balancer.direction.direction.bandwidth
    last, next_ = routing.experts[:, -1].tolist(), routing.runner_up.tolist()
    for a, b, margin in zip(last, next_, routing.margin, strict=True):
        if margin <= bandwidth and SCATTERED[a] != SCATTERED[b]:
            slow[SCATTERED[a], SCATTERED[b]] += 1
    assert slow.sum() > 5
    assert torch.equal(tally.parts["pairs"], slow)
    assert tally.parts["flips"].shape == (DEVICES, 514)
    assert tally.parts["flips"].sum() == len(scores) * E


def test_relabelling_that_keeps_devices_relabels_everything():
    """In place of the contract's law: whole devices change places, experts within one too."""
    rng = torch.Generator().manual_seed(3)
    order = torch.cat(
        [
            4 * device + torch.randperm(4, generator=rng)
            for device in torch.randperm(DEVICES, generator=rng)
        ]
    )
    here, there = (equipoise.balancer("per_device", E, top_k=K, devices=DEVICES) for _ in range(2))
    for _ in range(4):
        # not on a grid: with bins on it too, experts of two devices may tie
        batch = torch.rand(160, E, generator=rng) + torch.linspace(0.3, 0, E)
        routing, tally = forward(here, batch)
        other_routing, other_tally = forward(there, batch[:, order])
        assert torch.equal(order[other_routing.experts], routing.experts)
        here.update(tally)
        there.update(other_tally)
        torch.testing.assert_close(there.shift, here.shift[order], rtol=0, atol=1e-7)


def test_naming_devices_is_the_same_as_counting_them():
    blocks = equipoise.balancer("per_device", E, top_k=K, devices=DEVICES)
    named = equipoise.balancer(
        "per_device", E, top_k=K, devices=[10 * (expert // 4) for expert in range(E)]
    )
    for seed in range(3):
        tallies = [forward(each, exact_scores(seed=seed))[1] for each in (blocks, named)]
        assert_same_tally(*tallies)
        blocks.update(tallies[0])
        named.update(tallies[1])
    assert_same_state(blocks, named)


def test_devices_become_even_and_affinity_stays():
    """Fresh tokens of one popularity: idle near chance, and far more score than even experts keep.

    What it should reach is what curvature for experts reaches, whose devices are even too.
    """
    rng = torch.Generator().manual_seed(0)
    popular = 0.7 * torch.randn(64, generator=rng)
    rules = {
        "devices": equipoise.balancer("per_device", 64, top_k=6, devices=8),
        "experts": equipoise.balancer("curvature", 64, top_k=6),
        "none": equipoise.balancer("none", 64, top_k=6),
    }
    loads, kept = ({name: [] for name in rules} for _ in range(2))
    for _ in range(24):
        scores = (popular + torch.randn(2048, 64, generator=rng)).softmax(1)
        for name, rule in rules.items():
            routing, tally = forward(rule, scores)
            rule.update(tally)
            loads[name].append(routing.loads)
            kept[name].append(float(routing.gates.sum()))
    idle = {name: float(idle_share(torch.stack(rows[8:]), 8)) for name, rows in loads.items()}
    share = {name: sum(rows[8:]) / sum(kept["none"][8:]) for name, rows in kept.items()}
    assert idle["devices"] < 1.2 * idle["experts"] < 0.2 * idle["none"]
    assert share["devices"] > 0.95
    assert share["experts"] < 0.8


def test_one_device_moves_nothing():
    balancer = train(equipoise.balancer("per_device", 13, top_k=3, devices=1), steps=0)
    for _ in range(3):
        scores = torch.rand(64, 13) ** 2
        balancer.update(forward(balancer, scores)[1])
    assert not balancer.shift.any()


def test_state_is_per_device_and_continues():
    balancer = train(equipoise.balancer("per_device", E, top_k=K, devices=DEVICES))
    assert balancer.state_dict()["direction.direction.graph"].shape == (DEVICES, DEVICES)
    assert not any("place" in name or "weights" in name for name in balancer.state_dict())
    twin = equipoise.balancer("per_device", E, top_k=K, devices=DEVICES)
    twin.load_state_dict(copy.deepcopy(balancer.state_dict()))
    assert_same_state(train(balancer), train(twin))


def test_load_only_rules_stay_load_only():
    """Adapters that see counts alone can use them."""
    assert not Dual(E, K, PerDevice(LoadGap("counts"), DEVICES), [Sign()]).needs_scores
    assert Dual(E, K, PerDevice(QuantileMove(), DEVICES)).needs_scores


class Silent(Direction):
    """Counts something, and does not say of what shape."""

    def count(self, scores, routing, shift):
        return {"some": scores.sum(0)}

    def forward(self, tally, target):
        return tally.parts["some"]


def test_what_cannot_be_summed_is_refused():
    balancer = Dual(E, K, PerDevice(Silent(), DEVICES))
    with pytest.raises(TypeError, match="Silent does not say the shapes of what it counts"):
        forward(balancer, exact_scores())


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (5, "16 experts do not divide over 5 devices: choose a divisor"),
        (0, "16 experts do not divide over 0 devices"),
        ([0, 1], "2 devices are named for 16 experts"),
        ([0] * 6 + [1] * 10, r"devices hold \[6, 10\] experts: every one must hold as many"),
    ],
)
def test_wrong_devices_are_named(devices, message):
    with pytest.raises(ValueError, match=message):
        equipoise.balancer("per_device", E, top_k=K, devices=devices)


def test_the_arena_balances_the_devices_it_measures():
    from equipoise.arena.cells import Cell
    from equipoise.arena.streams.catalogue import SYNTHETIC

    balancer = Cell(SYNTHETIC["drift"], "per_device", devices=16).make_balancer()
    assert balancer.direction.number == 16
    assert "devices=16" in repr(balancer)
    assert device_loads(torch.ones(64), 16).tolist() == [4.0] * 16
