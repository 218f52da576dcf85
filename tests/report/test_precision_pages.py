"""The pages of doctor --precision and of agree in a real browser, without a network."""

import numpy as np
import pytest

import equipoise
from equipoise.attach.replay import ExpertChoices
from equipoise.report.agreement.page import write_agreement_page
from equipoise.report.precision.page import write_precision_page
from equipoise.trace import TraceAbout, TraceWriter

E, K, T = 8, 2, 500


@pytest.fixture(scope="module")
def precision_page(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("precision"), np.random.default_rng(0)
    about = TraceAbout(gate="sigmoid", sequence_length=T)
    layers = ("model.layers.1.mlp", "model.layers.2.<b>mlp</b>")
    with TraceWriter(folder / "trace", top_k=K, layers=layers, about=about) as writer:
        for layer in layers:
            shift = rng.normal(0, 0.1, E).astype(np.float32)
            scores = rng.random((T, E)).astype(np.float32)
            loads = np.full(E, T * K // E)
            writer.append(0, layer, shift=shift, shift_after=shift, loads=loads, scores=scores)
    found = equipoise.router_precision(folder / "trace")
    return write_precision_page(found, folder / "page.html")


@pytest.fixture(scope="module")
def agreement_page(tmp_path_factory):
    rng, pair = np.random.default_rng(0), []
    for _ in range(2):
        choices = ExpertChoices()
        for layer in range(3):
            rows = np.array([rng.permutation(3)[:K] for _ in range(T)])
            gates = rng.dirichlet(np.ones(K), T)
            margins, levels = 0.02 * rng.random(T), np.full(T, 0.5)
            choices.add_rows(f"layers.{layer}", rows, margins, levels=levels, gates=gates)
        pair.append(choices)
    found = equipoise.agree(*pair, precision="bf16")
    path = tmp_path_factory.mktemp("agreement") / "page.html"
    return write_agreement_page(found, ("a.npz", "<i>b</i>.npz"), path)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["precision_page", "agreement_page"])
def test_they_open_without_errors_and_fit(opened, request, name, width):
    page, errors = opened(request.getfixturevalue(name), width=width, scheme="dark")
    assert errors == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    plots = page.locator(".js-plotly-plot")
    assert plots.count() == (3 if name == "precision_page" else 2)
    assert page.locator("main b").count() == page.locator("main i").count() == 0


TOTAL = "() => document.getElementById('{}').data[0].customdata.reduce((a, b) => a + b)"


def test_margins_are_those_of_the_layer_that_is_chosen(opened, precision_page):
    page, errors = opened(precision_page)
    assert page.evaluate(TOTAL.format("histogram")) == 2 * T
    page.select_option("#layer", index=2)
    assert page.evaluate(TOTAL.format("histogram")) == T
    names = page.evaluate("() => document.getElementById('changed').data.map((each) => each.name)")
    assert names[:2] == ["bf16 scores", "bf16 bias"]
    assert page.locator("#shares tbody tr").count() == 6
    assert errors == []


def test_causes_are_stacked_and_the_table_sorts(opened, agreement_page):
    page, errors = opened(agreement_page)
    names = page.evaluate("() => document.getElementById('differ').data.map((each) => each.name)")
    assert names == ["rounding", "follows", "other"]
    page.locator("#layers th button", has_text="layer").click()
    assert page.locator("#layers tbody tr").count() == 3
    page.select_option("#layer", index=1)
    words = page.evaluate("() => document.getElementById('margins').data[0].text.join(' ')")
    assert f"of {T}" not in words
    assert errors == []
