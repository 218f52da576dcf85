"""watch_runs: serve the page of runs and follow them, until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from equipoise.report.run.page import live_page
from equipoise.storage.optional import import_optional
from equipoise.watch.access import Access, make_access
from equipoise.watch.app import make_app
from equipoise.watch.feed import Feed

if TYPE_CHECKING:
    from starlette.applications import Starlette

DEFAULT_PORT = 8642
CLOSING_SECONDS = 1
"""that open connections get when the server is stopped"""


def watch_runs(
    runs: Sequence[str | Path],
    *,
    port: int = DEFAULT_PORT,
    host: str = "127.0.0.1",
    token: str | None = None,
) -> None:
    """Serve one page that follows runs while they are written, until Ctrl-C.

    Args:
        runs: folders of trainings, of `balance(..., trace=...)`, of a sweep or a comparison; they
            may begin later.
        port: of the server; 0 takes a free one.
        host: the address to bind to. Any but this machine's own needs a token.
        token: at least 16 letters that a reader must show; by default the environment's
            EQUIPOISE_WATCH_TOKEN.

    Raises:
        ValueError: for a file in place of a folder, an address that needs a token, or a port that
            is in use.

    Example:
        >>> equipoise.watch_runs(["runs/a", "runs/b"], port=0)  # doctest: +SKIP
    """
    folders = [_checked_folder(Path(run)) for run in runs]
    if not folders:
        raise ValueError("name at least one folder of a run")
    access = make_access(host, token)
    uvicorn: Any = import_optional("uvicorn", extra="watch")
    app = app_of_runs(folders, access)
    with bind_socket(host, port) as bound:
        print(
            f"watching {', '.join(map(str, runs))} at {address_of(bound, host, access)}", flush=True
        )
        config = uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=CLOSING_SECONDS,
        )
        uvicorn.Server(config).run(sockets=[bound])


def app_of_runs(folders: Sequence[Path], access: Access) -> Starlette:
    """The ASGI application that `watch_runs` serves."""
    names = [folder.resolve().name for folder in folders]
    page = live_page(names)
    return make_app(Feed(folders), access, page)


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket at the address, bound and not yet listening."""
    if not 0 <= port < 65536:
        raise ValueError(f"a port is a number from 0 to 65535, not {port}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ValueError(f"there is no address {host!r}: {error}") from None
    bound = socket.socket(family, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ValueError(
            f"cannot serve at {host}, port {port} ({error.strerror}): pass another --port, or "
            "--port 0 for a free one"
        ) from None
    return bound


def address_of(bound: socket.socket, host: str, access: Access) -> str:
    """What to open in a browser; with a token, where one is needed."""
    name = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    key = "" if access.token is None else f"?token={quote(access.token, safe='')}"
    return f"http://{name}:{bound.getsockname()[1]}/{key}"


def _checked_folder(folder: Path) -> Path:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name the folder of a run")
    return folder
