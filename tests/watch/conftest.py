"""A server of `equipoise watch` in this process, and a browser that looks at it."""

import http.client
import threading
import time

import pytest

from equipoise.watch.access import make_access
from equipoise.watch.app import make_app
from equipoise.watch.feed import Feed
from equipoise.watch.watch_runs import app_of_runs, bind_socket
from tests.training.conftest import own_cache, texts  # noqa: F401  fixtures of the trainings


class Served:
    """A running server: raw requests, as a stranger would send them."""

    def __init__(self, app):
        uvicorn = pytest.importorskip("uvicorn")
        self.bound = bind_socket("127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.bound]}, daemon=True
        )
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def get(self, path="/", host=None, method="GET", **headers):
        """Status, headers and the beginning of the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read1(1 << 20).decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), body

    def close(self):
        self.server.should_exit = True
        self.thread.join(10)
        self.bound.close()


@pytest.fixture
def serve():
    """Serves folders; a page of one word stands for the real one unless `whole`."""
    started = []

    def start(*folders, token=None, whole=False):
        access = make_access("127.0.0.1", token)
        if whole:
            app = app_of_runs(folders, access)
        else:
            app = make_app(Feed(folders, poll_seconds=0.05), access, "page")
        started.append(Served(app))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def look(browser):
    """Opens an address and gives the page with the console's errors."""
    contexts = []

    def open_page(address, width=1280, drawn=True):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
        page, errors = contexts[-1].new_page(), []
        page.on("console", lambda told: errors.append(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.wait_for_selector("body[data-ready=yes]", timeout=90_000)
        if drawn:
            page.wait_for_selector("body[data-drawn]", timeout=90_000)
        return page, errors

    yield open_page
    for context in contexts:
        context.close()
