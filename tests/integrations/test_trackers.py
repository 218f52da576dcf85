"""log_balance and TrackingCallback, with writers that keep what they are sent."""

import types

import pytest
import torch
from transformers import TrainerCallback

import equipoise
from equipoise.drawing.heat_map import draw_heat_map
from equipoise.integrations.attached_layers import watch_switches
from equipoise.integrations.tracking_callback import TrackingCallback
from equipoise.tracking import LayerBalance, relative_loads
from tests.attach.test_trainer import trainer
from tests.attach.tools import batch, forward, tiny
from tests.integrations.stand_in_writer import StandInWriter

NAMES = {
    "imbalance", "imbalance_floor", "max_violation", "worst_violation", "worst_layer",
    "dead_experts", "switched_share", "idle_share",
}  # fmt: skip


def counted(balancer, scores):
    routing = balancer.route(scores)
    return balancer.tally(scores, routing)


def test_ones_own_layers():
    balancer = equipoise.balancer("deepseek", 8, top_k=2)
    tallies = [counted(balancer, torch.rand(n, 8)) for n in (40, 24)]
    writer = StandInWriter()
    sent = equipoise.log_balance(writer, {"0": sum(tallies)}, 200, top_k=2, devices=4)
    assert {name.removeprefix("balance/") for name in sent} == NAMES - {"switched_share"}
    assert writer.scalars == {name: {200: value} for name, value in sent.items()}
    loads = sum(tallies).loads
    assert sent["balance/imbalance"] == equipoise.metrics(loads)["imbalance"]
    idle = float(equipoise.idle_share(sum(tallies).forwards, 4))
    assert sent["balance/idle_share"] == pytest.approx(idle)
    drawn = draw_heat_map({"0": loads.numpy() / 16.0}, "loads over target, step 200")
    assert (writer.images["balance/loads"][200] == drawn).all()


@pytest.mark.parametrize(
    ("image_every", "steps"), [(100, [0, 100]), (0, []), (50, [0, 50, 100, 150])]
)
def test_pictures_now_and_then(image_every, steps):
    writer = StandInWriter()
    for step in range(0, 200, 25):
        equipoise.log_balance(
            writer, {"0": torch.tensor([3, 1])}, step, image_every=image_every, prefix="moe"
        )
    assert list(writer.images.get("moe/loads", {})) == steps
    assert len(writer.scalars["moe/imbalance"]) == 8


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_a_balanced_model(name):
    """Loads, target and churn of its last step; churn against all scores routed by hand."""
    model, writer = tiny(name), StandInWriter()
    balancing = equipoise.balance(model, "deepseek", update_rate=0.1)
    with pytest.raises(RuntimeError, match="no step yet"):
        equipoise.log_balance(writer, balancing, 0)
    watch = watch_switches(balancing)
    for step in range(2):
        before = [router.applied_shift.clone() for router in balancing.routers]
        forward(model, batch(step)).backward()
        balancing.step()
        sent = equipoise.log_balance(writer, balancing, step, devices=2)
    assert {name.removeprefix("balance/") for name in sent} == NAMES
    measured = balancing.metrics()
    assert sent["balance/imbalance"] == pytest.approx(measured["imbalance"])
    worst = list(measured["layers"])[int(sent["balance/worst_layer"])]
    assert worst == measured["worst_layer"]
    shares = []
    for router, shift in zip(balancing.routers, before):
        scores = watch._seen[router.name].scores
        assert len(scores) == 36
        sets = [
            (scores + each).topk(router.balancer.top_k).indices.sort(1).values
            for each in (shift, router.applied_shift)
        ]
        shares.append(float((sets[0] != sets[1]).any(1).double().mean()))
    assert sum(shares) > 0
    # families with groups choose in another way
    if all(router.found.spec.groups is None for router in balancing.routers):
        expected = sum(shares) / len(shares)
        assert sent["balance/switched_share"] == pytest.approx(expected)


def test_watching_changes_nothing_and_leaves_a_trace_whole(tmp_path):
    shifts = []
    for watched in (False, True):
        model = tiny("mixtral")
        balancing = equipoise.balance(model, trace=tmp_path / f"{watched}", trace_scores=8)
        if watched:
            watch_switches(balancing)
        for step in range(3):
            forward(model, batch(step)).backward()
            balancing.step()
        balancing.detach()
        shifts.append([router.balancer.shift.tolist() for router in balancing.routers])
    assert shifts[0] == shifts[1]
    plain, seen = (equipoise.Trace.open(tmp_path / name) for name in ("False", "True"))
    layer = plain.layers[0]
    for step in plain.steps(layer):
        one, other = (trace.record(layer, step).scores for trace in (plain, seen))
        assert len(one) == 8
        assert (one == other).all()


def test_churn_of_another_step_is_not_told():
    model = tiny("mixtral")
    balancing = equipoise.balance(model)
    forward(model, batch(0)).backward()
    balancing.step()
    # the first call begins to watch
    assert "balance/switched_share" not in equipoise.log_balance(StandInWriter(), balancing, 1)
    forward(model, batch(1)).backward()
    assert "balance/switched_share" not in equipoise.log_balance(StandInWriter(), balancing, 1)
    balancing.step()
    assert "balance/switched_share" in equipoise.log_balance(StandInWriter(), balancing, 2)


@pytest.mark.parametrize("tracker", [object(), print, types.ModuleType("json"), None])
def test_what_is_no_tracker_is_refused(tracker):
    with pytest.raises(TypeError, match="is no tracker: give a SummaryWriter"):
        equipoise.log_balance(tracker, {"0": torch.ones(2)}, 0)


def test_what_is_no_layer_is_refused():
    with pytest.raises(TypeError, match=r"log_balance takes .* not list"):
        equipoise.log_balance(StandInWriter(), [torch.ones(2)], 0)
    balancing = equipoise.balance(tiny("mixtral"))
    with pytest.raises(ValueError, match="knows its own top_k and target"):
        equipoise.log_balance(StandInWriter(), balancing, 0, top_k=2)


@pytest.mark.parametrize("library", ["wandb", "trackio"])
def test_runs_and_modules_with_a_log(library, monkeypatch):
    """A stand-in: what the real ones make of it is a slow test (test_real_trackers.py)."""
    module, sent = types.ModuleType(library), []
    module.Image = lambda pixels: ("picture", pixels.shape[2])
    module.log = lambda values, step=None: sent.append((values, step))
    monkeypatch.setitem(__import__("sys").modules, library, module)
    run = type("Run", (), {"__module__": f"{library}.run", "log": staticmethod(module.log)})()
    for tracker in (module, run):
        equipoise.log_balance(tracker, {"0": torch.tensor([3, 1])}, 100)
    assert sent[0] == sent[1]
    values, step = sent[0]
    assert step == 100
    assert values["balance/imbalance"] == 0.5
    assert values["balance/loads"] == ("picture", 3)


class Reporter(TrainerCallback):
    """Logs as Trainer's own do, and has a writer as its TensorBoardCallback has."""

    def __init__(self):
        self.tb_writer, self.logged = StandInWriter(), []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logged.append((state.global_step, dict(logs)))


@pytest.mark.parametrize("order", [1, -1])
def test_trainer_sends_it_through_its_reporters(order, tmp_path):
    model = tiny("mixtral")
    balancing = equipoise.balance(model, "deepseek", update_rate=0.01)
    run = trainer(model, tmp_path, balancing)
    reporter = Reporter()
    for callback in (reporter, TrackingCallback(balancing, image_every=2, devices=2))[::order]:
        run.add_callback(callback)
    run.train()
    steps = [(step, logs) for step, logs in reporter.logged if "loss" in logs]
    assert [step for step, _ in steps] == [1, 2, 3, 4]
    for _, logs in steps:
        assert {name for name in logs if name.startswith("balance/")} == {
            f"balance/{name}" for name in NAMES
        }
        assert logs["balance/imbalance"] == pytest.approx(logs["imbalance"], abs=1e-4)
    assert [entry["balance/imbalance"] for entry in run.state.log_history if "loss" in entry] == [
        logs["balance/imbalance"] for _, logs in steps
    ]
    pictures = reporter.tb_writer.images["train/balance/loads"]
    assert list(pictures) == [2, 4]
    layers = {
        router.name: relative_loads(LayerBalance(balancing.last_tallies[router.name].loads))
        for router in balancing.routers
    }
    assert (pictures[4] == draw_heat_map(layers, "loads over target, step 4")).all()


def test_the_model_may_be_balanced_by_another_callback(tmp_path):
    model = tiny("mixtral")
    balancing = equipoise.balance(model)
    run, reporter = trainer(model, tmp_path, balancing, max_steps=1), Reporter()

    class Holder(TrainerCallback):
        pass

    holder = Holder()
    holder.balancing = balancing
    for callback in (holder, reporter, TrackingCallback()):
        run.add_callback(callback)
    run.train()
    assert "balance/imbalance" in reporter.logged[0][1]


def test_without_a_balanced_model_it_says_what_to_give(tmp_path):
    run = trainer(tiny("mixtral"), tmp_path)
    run.add_callback(TrackingCallback())
    with pytest.raises(RuntimeError, match="knows no balanced model"):
        run.train()
