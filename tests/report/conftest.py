"""A small comparison made once, and its page in a real browser."""

import pytest

from equipoise.experiments.compare import compare
from equipoise.report import report
from equipoise.training import train
from tests.experiments.conftest import SETTINGS
from tests.training.conftest import own_cache, texts  # noqa: F401  fixtures of the trainings

SCHEMES = ["none", "deepseek", "inverse_sqrt", "quantile"]


@pytest.fixture(scope="session")
def results(texts, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "equipoise.experiments.compare.run_jobs",
            lambda jobs, **_: [train(job.config) for job in jobs],
        )
        compare(folder, schemes=SCHEMES, data=str(texts), **SETTINGS)
    report(folder)
    return folder


@pytest.fixture
def opened(browser, request):
    """Opens a page and gives it with the console's errors; `width` and `scheme` as a reader would
    have them.
    """
    contexts = []

    def open_page(path=None, width=1280, scheme="light"):
        path = path or request.getfixturevalue("results") / "report.html"
        contexts.append(
            browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
            )
        )
        page, errors = contexts[-1].new_page(), []
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready=yes]", timeout=60_000)
        return page, errors

    yield open_page
    for context in contexts:
        context.close()
