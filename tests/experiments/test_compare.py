"""The comparison: same start, nothing repeated, nothing lost."""

import json
import os
import signal
import threading
import time

import pytest

from equipoise.experiments.compare import compare, plan_runs, recording_settings, write_table
from equipoise.experiments.processes import jobs
from equipoise.experiments.schemes import SCHEMES, choose_schemes, configure_run
from equipoise.results.comparison.rows import comparison_results
from equipoise.results.comparison.rows_file import gather_rows, read_rows
from equipoise.training import Stopped, train


@pytest.fixture
def trained_here(monkeypatch):
    """Trainings in this process, which has torch already; the names of those that were made."""
    made = []

    def run(planned, *, workers=1):
        for job in planned:
            jobs.refuse_other_run(job)
            if not job.finished:
                made.append(job.name)
                train(job.config)
        return {}

    monkeypatch.setattr("equipoise.experiments.compare.run_jobs", run)
    return made


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_all_start_alike(tmp_path, settings, trained_here):
    rows = compare(tmp_path, schemes=["none", "deepseek", "curvature_ahead"], **settings)
    assert [row["name"] for row in rows] == ["none", "deepseek", "curvature_ahead"]
    first = [metrics(tmp_path / "runs" / f"{row['name']}-0")[0] for row in rows]
    assert len({(row["loss"], row["imbalance"]) for row in first}) == 1
    for row in rows:
        assert row["dual_gap"] >= 0
        assert 0 <= row["given_up"] < 1
        assert 0 <= row["idle_share"] < 1
    assert json.loads((tmp_path / "table.json").read_text()) == rows


def test_finished_runs_are_not_repeated(tmp_path, settings, trained_here):
    first = compare(tmp_path, schemes=["none"], **settings)
    again = compare(tmp_path, schemes=["none", "quantile"], **settings)
    assert trained_here == ["none-0", "quantile-0"]
    assert again[0] == first[0]


def test_earlier_schemes_and_seeds_stay(tmp_path, settings, trained_here):
    first = compare(tmp_path, schemes=["none", "quantile"], seeds=2, **settings)
    again = compare(tmp_path, schemes=["deepseek"], **settings)
    assert [row["name"] for row in again] == ["none", "deepseek", "quantile"]
    assert [again[0], again[2]] == first
    assert (again[1]["seeds"], again[1]["failed"]) == (1, [])
    assert json.loads((tmp_path / "manifest.json").read_text())["seeds"] == [0, 1]


def test_schemes_of_other_settings_do_not_stay(tmp_path, settings, trained_here):
    compare(tmp_path, schemes=["none"], **settings)
    with pytest.warns(UserWarning, match=r"other settings, which leave its table.*: none-0"):
        [row] = compare(tmp_path, schemes=["quantile"], **{**settings, "steps": 5})
    assert row["name"] == "quantile"


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(tmp_path, workers):
    with pytest.raises(ValueError, match=rf"workers must be at least 1, not {workers}"):
        compare(tmp_path, schemes=["none"], workers=workers)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["[]", "{}", '{"a', '{"runs": 3}'])
def test_a_damaged_manifest_is_named(tmp_path, settings, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        compare(tmp_path, schemes=["none"], **settings)


def test_all_is_kept_in_one_file(tmp_path, settings, trained_here):
    rows = compare(tmp_path, schemes=["none", "deepseek"], seeds=2, **settings)
    kept = read_rows(tmp_path / "rows.json")
    assert [row.to_json() for row in comparison_results(kept).rows] == rows
    assert kept == gather_rows(tmp_path)
    assert ["figures" in run for run in kept["runs"]] == [True, False, True, False]
    losses = [run["result"]["validation_loss"] for run in kept["runs"][:2]]
    assert rows[0]["values"]["validation_loss"] == {"0": losses[0], "1": losses[1]}


def test_what_has_not_finished_is_listed(tmp_path, settings, trained_here):
    compare(tmp_path, schemes=["none"], seeds=2, **settings)
    (tmp_path / "runs/none-1/result.json").unlink()
    (tmp_path / "runs/none-1/failure.json").write_text('{"error": "no memory"}')
    [row] = write_table(tmp_path)
    assert (row["seeds"], row["failed"]) == (1, [{"seed": 1, "error": "no memory"}])


def test_seeds_give_means_and_spread(tmp_path, settings, trained_here):
    [row] = compare(tmp_path, schemes=["none"], seeds=2, **settings)
    losses = [
        json.loads((tmp_path / f"runs/none-{n}/result.json").read_text())["validation_loss"]
        for n in (0, 1)
    ]
    assert row["validation_loss"] == pytest.approx(sum(losses) / 2)
    assert row["validation_loss_spread"] == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)


def test_other_settings_are_refused(tmp_path, settings, trained_here):
    compare(tmp_path, schemes=["none"], **settings)
    with pytest.raises(ValueError, match="steps: 4 there, 5 here"):
        compare(tmp_path, schemes=["none"], **{**settings, "steps": 5})
    assert json.loads((tmp_path / "manifest.json").read_text())["steps"] == 4


def test_processes_fail_alone_and_are_recorded(tmp_path, settings):
    planned = plan_runs(tmp_path, "tiny", ["none", "quantile"], 1, settings)
    (planned[0].folder).mkdir(parents=True)
    (planned[0].folder / "trace").write_text("where a folder should be")
    failed = jobs.run_jobs(planned, workers=2)
    assert list(failed) == ["none-0"]
    assert "exit code" in jobs.load_failure(planned[0].folder)
    assert planned[1].finished


def test_tuned_rates_are_used():
    for scheme in SCHEMES:
        assert configure_run(scheme, "tiny").update_rate == scheme.update_rate("tiny")
        assert configure_run(scheme, "small").update_rate == scheme.paper_update_rate


def test_wrong_names_are_reported():
    with pytest.raises(ValueError, match="did you mean 'deepseek'"):
        choose_schemes(["deepsek"])


def test_large_batches_are_not_kept_whole():
    assert recording_settings("tiny", {})["trace_scores"] == 1024
    assert recording_settings("deepseekmoe-1b", {})["trace_scores"] == 0


@pytest.mark.slow
def test_stopped_runs_continue(tmp_path, settings):
    planned = plan_runs(tmp_path, "tiny", ["none"], 1, {**settings, "steps": 2000})
    written = planned[0].folder / "metrics.jsonl"

    def stop():
        while not written.exists() or written.stat().st_size < 2000:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Stopped, match="continues where it was stopped"):
        jobs.run_jobs(planned)
    [kept] = (planned[0].folder / "checkpoints").glob("step-*")
    assert 0 < int(kept.name.removeprefix("step-")) < 2000
    assert not planned[0].finished
    assert jobs.run_jobs(planned) == {}
    assert planned[0].finished
