"""Cells: measures that are what they say, in parallel or not, and in a folder that can be gone on
with.
"""

import dataclasses
import json
import os

import numpy as np
import pytest
import torch

import equipoise
from equipoise.arena.cells import Cell, run_cells
from equipoise.arena.contest import contest, plan_cells
from equipoise.arena.reference import reference_for
from equipoise.arena.streams import catalogue
from equipoise.arena.streams.catalogue import find_streams
from equipoise.optimum import solve
from equipoise.optimum.hindsight import dual_at_shift
from equipoise.results.arena import SUMMARY_KEYS

SMALL = dataclasses.replace(
    catalogue.SYNTHETIC["drift"], num_tokens=512, num_experts=16, top_k=2, steps=18, name="small"
)


@pytest.fixture(scope="module")
def results():
    return {
        (each.balancer, each.rate): each
        for each in contest(
            plan_cells([SMALL], ["none", "deepseek", "quantile", "curvature", "base"], devices=4),
            workers=1,
        )
    }


def test_every_rule_meets_the_same_scores(results):
    assert len({each.imbalance[0] for each in results.values() if each.balancer != "base"}) == 1
    assert results["curvature", None].steady_imbalance < results["none", None].steady_imbalance / 4


def test_exact_assignments_keep_all_affinity(results):
    """base solves the batch itself: perfect loads, the optimum's value up to its tolerance, nobody
    switched.
    """
    exact = results["base", None]
    assert max(exact.imbalance) < 1e-9
    assert exact.affinity_kept == pytest.approx(1, abs=2e-4)
    assert exact.switched == 0
    assert exact.idle_share == pytest.approx(0, abs=1e-9)


def test_no_balancing_keeps_more_than_the_optimum(results):
    assert results["none", None].affinity_kept > 1.05
    assert results["none", None].switched == 0
    assert results["deepseek", 1e-2].switched > 0.05


def test_figures_follow_from_the_series(results):
    cell = results["quantile", 1.0]
    assert cell.steady_imbalance == pytest.approx(np.mean(cell.imbalance[-6:]))
    near = next((n for n, value in enumerate(cell.imbalance) if value <= 2 * cell.floor), None)
    assert cell.steps_to_floor == near
    assert list(cell.summary_row()) == list(SUMMARY_KEYS)


def test_sequences_are_followed_where_a_stream_has_them():
    """Stronger: the more even a sequence is, the less affinity is kept. The cell knows the block,
    and has no regret, which is of shifts alone.
    """
    stream = dataclasses.replace(
        catalogue.SYNTHETIC["thin-sequences"], steps=6, score="sigmoid", name="short"
    )
    cells = plan_cells([stream], ["moving_quantile"], [1e-9, 1.0])
    weak, strong = contest(cells, workers=1)
    assert strong.affinity_kept < weak.affinity_kept
    assert weak.regret is None
    assert cells[0].make_balancer().moving.sequence_length == stream.block
    with pytest.raises(ValueError, match="follows sequences, and small has none of one length"):
        plan_cells([SMALL], ["moving_quantile"])
    with pytest.raises(ValueError, match="must see every token of a sequence"):
        plan_cells([stream], ["moving_quantile"], tally_every=2)


def test_the_lag_one_limit_is_the_batch_before(results):
    """By hand: the optimum of each of the last batches, on the batch after it."""
    seen = []
    for step in range(SMALL.steps - 8, SMALL.steps - 1):
        shift = equipoise.solve(SMALL.batch(step).scores.numpy(), 2).shift
        after = equipoise.evaluate(SMALL.batch(step + 1).scores.numpy(), 2, shift)
        seen.append(after.imbalance)
    assert results["none", None].lag_one == pytest.approx(np.mean(seen), rel=0.03)


def test_a_smaller_tally_still_balances():
    reference = reference_for(SMALL)
    (whole,), (eighth,) = (
        run_cells([Cell(SMALL, "quantile", 0.5, 4, every)], reference) for every in (1, 8)
    )
    assert whole.steady_imbalance < eighth.steady_imbalance < 0.8


def test_finished_cells_are_not_run_again(tmp_path):
    cells = plan_cells([SMALL], ["none", "curvature"], devices=4)
    first = contest(cells[:1], out=tmp_path, workers=1)
    (file,) = tmp_path.glob("small-none-*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "switched": 0.25}))
    done = []
    again = contest(cells, out=tmp_path, workers=1, on_cell=done.append)
    assert done == [1, 1]
    assert (again[0].switched, first[0].switched) == (0.25, 0)
    other = plan_cells([dataclasses.replace(SMALL, seed=1)], ["none"], devices=4)
    assert contest(other, out=tmp_path, workers=1)[0].switched == 0


def test_a_stopped_contest_goes_on(tmp_path):
    cells = plan_cells([SMALL], ["none", "curvature"], devices=4)

    def stop(number):
        if number:
            raise KeyboardInterrupt

    with pytest.raises(
        KeyboardInterrupt, match=r"1 of 2 cells are in .*, the same command continues"
    ):
        contest(cells, out=tmp_path, workers=1, on_cell=stop)
    done = []
    assert len(contest(cells, out=tmp_path, workers=1, on_cell=done.append)) == 2
    assert done == [1, 1]


def test_damaged_cells_are_run_again(tmp_path):
    cells = plan_cells([SMALL], ["none"], devices=4)
    first = contest(cells, out=tmp_path, workers=1)
    for text in ("{", "[]", ""):
        next(tmp_path.glob("small-none-*.json")).write_text(text)
        assert contest(cells, out=tmp_path, workers=1) == first


def test_another_arenas_unfinished_files_are_left_alone(tmp_path):
    (tmp_path / ".unfinished-young").write_text("")
    (tmp_path / ".unfinished-old").write_text("")
    os.utime(tmp_path / ".unfinished-old", (0, 0))
    contest([], out=tmp_path, workers=1)
    assert [path.name for path in tmp_path.glob(".unfinished-*")] == [".unfinished-young"]


def test_all_experts_for_all_tokens():
    """K = E: loads are even whatever one does, and there is no floor to be measured by."""
    stream = dataclasses.replace(SMALL, num_experts=4, top_k=4)
    for result in contest(plan_cells([stream], ["none", "quantile", "curvature"]), workers=1):
        assert (result.steady_imbalance, result.over_floor, result.steps_to_floor) == (0, None, 0)
        assert json.loads(json.dumps(result.summary_row(), allow_nan=False))["over_floor"] is None


def test_what_is_named_twice_is_run_once():
    assert len(plan_cells([SMALL], ["deepseek", "none", "deepseek"], [1e-3, 1e-3])) == 2


def test_processes_give_the_same(results, tmp_path):
    names = ["quantile", "curvature"]
    torch.set_num_threads(1)
    for each in contest(plan_cells([SMALL], names, devices=4), out=tmp_path, workers=2):
        assert each.summary_row() == results[each.balancer, each.rate].summary_row()


def test_mistakes_are_told_before_anything_runs():
    with pytest.raises(ValueError, match="did you mean 'deepseek'"):
        plan_cells([SMALL], ["deepsek"])
    with pytest.raises(ValueError, match="acts through the loss"):
        plan_cells([SMALL], ["aux"])
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a rate is a number above 0"):
            plan_cells([SMALL], ["deepseek"], [rate])
    with pytest.raises(ValueError, match="at most 1, not 2"):
        plan_cells([SMALL], ["deepseek", "quantile"], [2.0])
    with pytest.raises(ValueError, match="do not divide over 5 devices"):
        plan_cells([SMALL], ["none"], devices=5)


@pytest.mark.parametrize("option", ["devices", "tally_every"])
def test_impossible_numbers_are_refused(option):
    with pytest.raises(ValueError, match=f"--{option.replace('_', '-')} must be at least 1, not 0"):
        plan_cells([], [], None, **{option: 0})


def test_regret_says_what_shifts_lost(tmp_path):
    streams = find_streams("drift", steps=30, tokens=512)
    cells = plan_cells(streams, ["none", "curvature", "base"])
    none, curvature, base = contest(cells, out=tmp_path, workers=1)
    assert none.regret > 10 * abs(curvature.regret)
    assert none.dynamic_regret > none.regret
    assert curvature.dynamic_regret > max(0.0, curvature.regret)
    assert none.path_length == curvature.path_length > 0
    # it has no shift to judge
    assert base.regret is None


def test_regret_is_of_the_shift_before_the_batch_is_learnt_from():
    (stream,) = find_streams("softmax", steps=1, tokens=512)
    (cell,) = plan_cells([stream], ["quantile"], rates=[1.0])
    (result,) = run_cells([cell], reference_for(stream))
    unmoved = dual_at_shift(stream.batch(0).scores.numpy(), stream.top_k, np.zeros(64))
    optimum = solve(stream.batch(0).scores.numpy(), stream.top_k).value
    assert result.dynamic_regret == pytest.approx(unmoved / optimum - 1)


def test_groups_have_no_regret():
    (stream,) = find_streams("e256-groups", steps=3, tokens=256)
    (cell,) = plan_cells([stream], ["deepseek"], rates=[1e-3])
    (result,) = run_cells([cell], reference_for(stream))
    assert result.regret is None


@pytest.mark.parametrize("name", ["sequences", "padding", "drift"])
def test_capacity_and_sequences_are_measured_by_hand(name):
    """Without balancing every step routes by the scores alone, so that all can be counted again."""
    stream = dataclasses.replace(catalogue.SYNTHETIC[name], num_tokens=512, steps=3)
    (cell,) = run_cells([Cell(stream, "none")], reference_for(stream))
    batch = stream.batch(2)
    chosen = batch.scores.topk(stream.top_k).indices
    length = stream.block or 512
    counts = np.zeros((512 // length, stream.num_experts))
    for token, experts in enumerate(chosen.tolist()):
        if batch.mask is None or not batch.mask[token]:
            counts[token // length, experts] += 1
    loads = counts.sum(0)
    capacity = np.ceil(1.25 * loads.sum() / stream.num_experts)
    lost = np.maximum(loads - capacity, 0).sum() / loads.sum()
    assert cell.dropped_share == pytest.approx(lost)
    assert lost > 0.1
    if stream.block is None:
        assert cell.sequence_violation is None
    else:
        assert cell.sequence_violation == pytest.approx((counts.max(1) / counts.mean(1)).mean() - 1)
