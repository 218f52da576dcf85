"""Who may read, and what: the page, its events, and nothing else."""

import json

import pytest

from equipoise.watch.access import Access, host_without_port, make_access
from equipoise.watch.watch_runs import address_of, bind_socket, watch_runs
from tests.watch.made_runs import made_run

TOKEN = "correct-horse-battery"


def test_beyond_this_machine_a_token_is_needed(monkeypatch):
    monkeypatch.delenv("EQUIPOISE_WATCH_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.168.1.4", "my-server"):
        with pytest.raises(ValueError, match="needs a token: pass --token"):
            make_access(host, None)
        assert make_access(host, TOKEN).token == TOKEN
    for host in ("127.0.0.1", "::1", "localhost"):
        assert make_access(host, None).token is None


def test_the_server_does_not_start_without_it(tmp_path, monkeypatch):
    monkeypatch.delenv("EQUIPOISE_WATCH_TOKEN", raising=False)
    with pytest.raises(ValueError, match="needs a token"):
        watch_runs([tmp_path], host="0.0.0.0", port=0)


def test_the_environment_may_hold_the_token(monkeypatch):
    monkeypatch.setenv("EQUIPOISE_WATCH_TOKEN", TOKEN)
    assert make_access("0.0.0.0", None).accepts_token(TOKEN)
    assert not make_access("127.0.0.1", None).accepts_token(None)


@pytest.mark.parametrize("token", ["", "short"])
def test_short_tokens_are_refused(token):
    with pytest.raises(ValueError, match="could be guessed"):
        make_access("127.0.0.1", token)


@pytest.mark.parametrize("given", [None, "", TOKEN[:-1], TOKEN + "x", "ü" * 20])
def test_a_wrong_token_is_refused(given):
    assert not make_access("0.0.0.0", TOKEN).accepts_token(given)


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda *both: compared.append(both) or True)
    assert Access(frozenset(), TOKEN, local_only=False).accepts_token("anything")
    assert compared == [(b"anything", TOKEN.encode())]


@pytest.mark.parametrize(
    ("header", "name"),
    [("localhost:8642", "localhost"), ("[::1]:80", "::1"), ("LOCALHOST", "localhost"), ("", "")],
)
def test_hosts_are_read(header, name):
    assert host_without_port(header) == name


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "", "127.0.0.1.evil.example"]
)
def test_a_name_pointed_at_us_is_refused(serve, tmp_path, host):
    served = serve(made_run(tmp_path / "run"))
    for path in ("/", "/events"):
        status, _, body = served.get(path, host=host or " ")
        assert status in (400, 421)
        assert "run" not in body.replace("runs", "")
    assert not make_access("127.0.0.1", None).knows_host(host)
    assert not make_access("0.0.0.0", TOKEN).knows_host(host)


def test_our_own_names_are_known(serve, tmp_path):
    served = serve(tmp_path)
    for host in (f"127.0.0.1:{served.port}", "localhost:9000", "[::1]", "127.0.0.2"):
        assert served.get(host=host)[0] == 200
    assert make_access("0.0.0.0", TOKEN).knows_host("10.0.0.7:8642")
    assert not make_access("127.0.0.1", None).knows_host("10.0.0.7:8642")


def test_the_token_becomes_a_cookie(serve, tmp_path):
    served = serve(made_run(tmp_path / "run"), token=TOKEN)
    for path in ("/", "/events", "/?token=wrong", "/events?token=wrong"):
        status, _, body = served.get(path)
        assert status == 403
        assert TOKEN not in body
    status, headers, _ = served.get(f"/?token={TOKEN}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    kept = cookie.split(";")[0]
    assert served.get(Cookie=kept)[0] == 200
    assert served.get("/events", Cookie=kept)[0] == 200
    assert served.get(Authorization=f"Bearer {TOKEN}")[0] == 200
    assert served.get(Authorization="Bearer wrong", Cookie=kept)[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "/config.yaml",
        "/metrics.jsonl",
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/events/../config.yaml",
        "/trace/trace.json",
        "/static/../pyproject.toml",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_file_is_served(serve, tmp_path, path):
    status, _, body = serve(made_run(tmp_path / "run")).get(path)
    assert status == 404
    assert "root:" not in body
    assert "deepseek" not in body


@pytest.mark.parametrize("layer", ["-1", "../1", "1e3", "999999999", "٣", "a"])
def test_odd_layers_are_refused(serve, tmp_path, layer):
    from urllib.parse import quote

    assert serve(tmp_path).get(f"/events?layer={quote(layer)}")[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(serve, tmp_path, method):
    assert serve(tmp_path).get(method=method)[0] == 405


def test_the_page_may_load_nothing_from_elsewhere(serve, tmp_path):
    headers = serve(tmp_path).get()[1]
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_a_manifest_cannot_point_elsewhere(serve, tmp_path):
    made_run(tmp_path / "secret")
    comparison = tmp_path / "comparison"
    made_run(comparison / "runs" / "deepseek-0")
    runs = {"deepseek-0": "runs/deepseek-0", "x-0": "../secret", "y-0": str(tmp_path / "secret")}
    (comparison / "manifest.json").write_text(json.dumps({"runs": runs}))
    _, _, body = serve(comparison).get("/events")
    assert "deepseek-0" in body
    assert "secret" not in body


def test_addresses_can_be_opened():
    access = make_access("127.0.0.1", "a token with / and ?")
    with bind_socket("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound, "127.0.0.1", access) == (
            f"http://127.0.0.1:{port}/?token=a%20token%20with%20%2F%20and%20%3F"
        )


def test_a_port_in_use_is_named(tmp_path):
    with bind_socket("127.0.0.1", 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} .*another --port"):
            watch_runs([tmp_path], port=port)


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        watch_runs([tmp_path / "a.txt"], port=0)
