"""app: the page and its events, over HTTP. Two addresses, no files:

    /                 the page; with ?token=... the token becomes a cookie and leaves the address
    /events?layer=3   what has changed, as server-sent events

Everything else is 404, before anything is looked up. A request is refused first for the name it
addresses, then for its token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from equipoise.storage.optional import import_optional
from equipoise.watch.access import Access
from equipoise.watch.feed import MOST_READERS, Feed

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

COOKIE = "equipoise-watch"
MOST_LAYERS = 10_000
SAFE_HEADERS = {
    # scripts and style stand in the page itself; nothing may be fetched from, or sent, elsewhere
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_app(feed: Feed, access: Access, page: str) -> Starlette:
    """The ASGI application.

    Args:
        feed: of the runs.
        access: who may read.
        page: its text, the same one for all.
    """
    import_optional("starlette", extra="watch")
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def show_page(request: Request) -> Response:
        from starlette.responses import HTMLResponse

        refused = _refuse(request, access)
        if refused is not None:
            return refused
        if "token" in request.query_params:
            return _keep_token(request)
        return HTMLResponse(page, headers=SAFE_HEADERS)

    async def send_events(request: Request) -> Response:
        return _refuse(request, access) or _stream_events(request, feed)

    return Starlette(routes=[Route("/", show_page), Route("/events", send_events)])


def _refuse(request: Request, access: Access) -> Response | None:
    """The refusal, if there is one."""
    if not access.knows_host(request.headers.get("host", "")):
        return _plain(
            "This server is not known by the name it was asked for. Use the address that "
            "`equipoise watch` printed, or its number.",
            421,
        )
    given = request.query_params.get("token") or request.cookies.get(COOKIE)
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given = bearer
    if not access.accepts_token(given):
        return _plain("This needs a token: open the address that `equipoise watch` printed.", 403)
    return None


def _keep_token(request: Request) -> Response:
    """The token leaves the address, where histories and screenshots would show it."""
    from starlette.responses import RedirectResponse

    response = RedirectResponse("/", status_code=303, headers=SAFE_HEADERS)
    token = request.query_params["token"]
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
    return response


def _stream_events(request: Request, feed: Feed) -> Response:
    from starlette.responses import StreamingResponse

    layer = request.query_params.get("layer", "0")
    if not (layer.isascii() and layer.isdigit() and len(layer) < 6) or int(layer) >= MOST_LAYERS:
        return _plain("layer is the number of a layer, from 0", 400)
    if len(feed.readers) >= MOST_READERS:
        return _plain(f"{MOST_READERS} pages are open already: close one", 503)
    headers = SAFE_HEADERS | {"X-Accel-Buffering": "no"}
    return StreamingResponse(
        _as_events(feed, int(layer)), media_type="text/event-stream", headers=headers
    )


async def _as_events(feed: Feed, layer: int) -> AsyncIterator[str]:
    """JSON has no line ends, so a message is one line of an event."""
    async for text in feed.events(layer):
        yield ": still here\n\n" if text is None else f"data: {text}\n\n"


def _plain(text: str, status: int) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text + "\n", status_code=status, headers=SAFE_HEADERS)
