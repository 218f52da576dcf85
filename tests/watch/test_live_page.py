"""The page in a real browser: a training runs, and the page changes without a reload."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.training.config import write_yaml
from tests.training.micro import small_config
from tests.watch.made_runs import add_rows, made_run, row_of

BAD = "<img src=x onerror=alert(1)><script>window.hit=1</script>"


def test_a_training_runs_and_the_page_follows(serve, look, texts, tmp_path):
    config = small_config(texts, out=str(tmp_path / "run"), steps=30, evaluate_every=10)
    wanted = tmp_path / "wanted.yaml"
    wanted.write_text(write_yaml(replace(config, lanes=1)))
    page, errors = look(serve(tmp_path / "run", whole=True).address)
    assert "has not begun" in page.locator(".answer").text_content()
    page.evaluate("() => { window.opened = 'once'; }")
    command = [sys.executable, "-m", "equipoise", "train", "--config", str(wanted)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as training:
        page.wait_for_function(
            "() => document.querySelector('.answer').textContent.includes('is running')",
            timeout=120_000,
        )
        output, _ = training.communicate(timeout=240)
    assert training.returncode == 0, output
    page.wait_for_function(
        "() => document.querySelector('.answer').textContent.includes('has finished 30 steps')",
        timeout=60_000,
    )
    page.wait_for_function("() => document.getElementById('loss').series[0].x.length === 30")
    marks = page.locator("#loss .mark").evaluate_all("(all) => all.map((one) => one.dataset.step)")
    assert marks == ["10", "20", "30"]
    assert page.locator("#loads svg.chart").count() == 1
    assert page.evaluate("() => window.opened") == "once"
    assert errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_new_steps_appear_at_every_width(serve, look, tmp_path, width):
    run = made_run(tmp_path / "run")
    page, errors = look(serve(run, whole=True).address, width=width)
    page.wait_for_selector("#imbalance path.line")
    add_rows(run, [row_of(step) for step in range(11, 16)])
    page.wait_for_function(
        "() => document.getElementById('imbalance').series[0].x.at(-1) === 15", timeout=20_000
    )
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert errors == []


def test_another_layer_and_another_order(serve, look, tmp_path):
    page, errors = look(serve(made_run(tmp_path / "run"), whole=True).address)
    page.wait_for_selector("#loads image")
    before = page.locator("#loads image").get_attribute("href")
    page.locator("#order").select_option("latest")
    assert page.locator("#loads image").get_attribute("href") != before
    page.locator("#layer").select_option(index=1)
    page.wait_for_function("() => STATE.tables.has('0 loads:1')")
    assert page.locator("#shifts-layer").text_content() == "b"
    assert errors == []


def test_several_runs_share_the_page(serve, look, tmp_path):
    runs = [made_run(tmp_path / "a"), made_run(tmp_path / "b"), tmp_path / "later"]
    page, errors = look(serve(*runs, whole=True).address)
    page.wait_for_selector("#overview")
    assert page.locator("#overview tbody tr").count() == 3
    assert page.locator("#loads svg.chart").count() == 2
    answer = page.locator(".answer").text_content()
    assert answer.startswith("3 runs: ")
    assert answer.endswith("Their imbalance is 4 (a) to 4 times (b) what chance leaves.")
    page.locator("#legend button").first.click()
    assert page.locator("#loads figure:not(.off)").count() == 1
    assert errors == []


def test_names_are_never_markup(serve, look, tmp_path):
    run = made_run(tmp_path / BAD.replace("/", "\u2215"))
    (run / "config.yaml").write_text(f"balancer: '{BAD}'\npreset: '{BAD}'\nsteps: 20\n")
    header = run / "trace" / "trace.json"
    header.write_text(header.read_text().replace('"a"', f'"{BAD}"'))
    (run / "metrics.jsonl").open("a").write("damaged <b>line</b>\n")
    for folders in ([run], [run, made_run(tmp_path / "other")]):
        page, errors = look(serve(*folders, whole=True).address)
        page.wait_for_selector("#imbalance path.line")
        page.locator("#imbalance").hover()
        page.wait_for_selector("#imbalance .readout:not([hidden])")
        assert page.evaluate("() => window.hit") is None
        assert page.locator("main img[src=x]").count() == 0
        assert BAD in page.locator("main").text_content()
        assert errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_one_cursor_tells_all_runs_and_stays_while_steps_come(serve, look, tmp_path, width):
    runs = [made_run(tmp_path / "a"), made_run(tmp_path / "b")]
    page, errors = look(serve(*runs, whole=True).address, width=width)
    page.wait_for_selector("#imbalance path.line")
    wide = page.locator("#imbalance svg").evaluate("(svg) => svg.getBoundingClientRect().width")
    page.locator("#imbalance svg").click(position={"x": wide - 12, "y": 100})
    told = page.locator("#imbalance .readout").inner_text().splitlines()
    assert told[0] == "step 10, imbalance of target"
    assert len(told) == 3
    assert "validation" in told[1]
    left, right = page.locator("#imbalance .readout").evaluate(
        "(box) => [box.getBoundingClientRect().left, box.getBoundingClientRect().right]"
    )
    assert 0 <= left < right <= width
    add_rows(runs[0], [row_of(step) for step in range(11, 14)])
    page.wait_for_function("() => document.getElementById('imbalance').series[0].x.at(-1) === 13")
    assert page.locator("#imbalance .readout").is_visible()
    assert errors == []


def test_a_live_figure_can_be_saved(serve, look, tmp_path):
    page, _ = look(serve(made_run(tmp_path / "run"), whole=True).address)
    page.wait_for_selector("#imbalance path.line")
    with page.expect_download() as download:
        page.locator("[data-of=imbalance] button", has_text="SVG").click()
    assert "imbalance (of target)" in Path(download.value.path()).read_text()


def test_the_page_needs_no_plotly(monkeypatch):
    from equipoise.report import frame
    from equipoise.report.run.page import live_page

    monkeypatch.setattr(frame, "_packed_plotly", lambda: pytest.fail("plotly was packed"))
    assert len(live_page(["run"])) < 100_000


def test_a_server_that_is_gone_is_told(serve, look, tmp_path):
    served = serve(made_run(tmp_path / "run"), whole=True)
    page, _ = look(served.address)
    served.close()
    page.wait_for_selector("#connection:not([hidden])", timeout=20_000)
    assert "connection is lost" in page.locator("#connection").text_content()


def test_a_token_opens_the_page(serve, look, tmp_path):
    served = serve(made_run(tmp_path / "run"), token="sixteen-letters-", whole=True)
    page, errors = look(served.address + "?token=sixteen-letters-")
    assert "token" not in page.url
    assert "at step 10 of 40" in page.locator(".answer").text_content()
    assert errors == []


def test_the_command_serves_and_stops(tmp_path):
    made_run(tmp_path / "run")
    command = [sys.executable, "-m", "equipoise", "watch", "run", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        line = server.stdout.readline()
        assert line.startswith("watching run at http://127.0.0.1:")
        server.terminate()
        _, errors = server.communicate(timeout=30)
    assert "Traceback" not in errors
    assert not list(Path(tmp_path / "run").glob(".*"))
