"""The server beside the ten risks that OWASP lists: what other sites, forged hosts and failures may get out of it."""

# ruff: noqa: E402  (what the extras bring is imported after it is known to be there)

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the page needs the extra serve")
pytest.importorskip("duckdb", reason="searching needs the extra search")
httpx = pytest.importorskip("httpx", reason="the API is asked through httpx")

from serve_data import NAMES, Place, app_of, make_place, running
from steelyard.search import Index
from steelyard.serve import make_app
from steelyard.serve.guards import HEADERS
from steelyard.serve.shown import Shown

ADDRESSES = [
    *("/", "/label", "/data", "/static/main.js", "/nothing"),
    *("/api/run", "/api/labels", "/api/search?q=cat", "/api/search?q=(", "/api/item?id=item 000", "/api/item?id=no"),
    *("/api/label?name=cat", "/api/data", "/api/thumbnail?id=item 000", "/api/thumbnail?id=no", "/api/openapi.json"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("serve"), 12)


@pytest.fixture(scope="module")
def app(place: Place) -> Any:
    return app_of(place)


def ask(app: Any, path: str, method: str = "GET", **options: Any) -> Any:
    async def go() -> Any:
        asked = httpx.ASGITransport(app, raise_app_exceptions=False)  # as a browser would see a failure
        async with httpx.AsyncClient(transport=asked, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **options)

    return asyncio.run(go())


def test_every_address_is_in_the_list(app: Any) -> None:
    """Else what is tested here would fall behind what is served."""
    told = {path.split("?")[0] for path in ADDRESSES}
    assert set(ask(app, "/api/openapi.json").json()["paths"]) <= told


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_no_other_site_may_read_an_answer(app: Any, path: str, origin: str) -> None:
    found = ask(app, path, headers={"origin": origin, "sec-fetch-site": "cross-site"})
    assert not [name for name in found.headers if name.startswith("access-control-")]
    assert found.headers["cross-origin-resource-policy"] == "same-origin"
    assert "set-cookie" not in found.headers


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "PUT", "PATCH", "TRACE", "CONNECT"])
def test_nothing_but_get_is_answered(app: Any, method: str) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "GET"}
    found = ask(app, "/api/labels", method, headers=asked)
    assert found.status_code == 405
    assert "evil" not in found.text + str(found.headers)


def test_asking_changes_nothing(app: Any, place: Place) -> None:
    def seen() -> dict[Path, tuple[int, int]]:
        return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in place.run.rglob("*")}

    before = seen()
    for path in ADDRESSES:
        ask(app, path)
    assert seen() == before


def test_what_browsers_and_proxies_may_keep(app: Any) -> None:
    """Pictures only in the browser that asked, failures nowhere, all else not without asking again."""
    for path in ADDRESSES:
        found = ask(app, path)
        if found.status_code >= 400:
            assert found.headers["cache-control"] == "no-store", path
        elif path.startswith("/api/thumbnail"):
            assert found.headers["cache-control"].startswith("private")
        elif path != "/api/openapi.json":
            assert found.headers["cache-control"] == "no-cache", path


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, OSError, KeyError])
def test_a_failure_of_ours_tells_nothing(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise kind("secret of /home/someone")

    for name, path in {"facts": "/api/run", "image": "/api/thumbnail?id=item 001", "item": "/api/item?id=x"}.items():
        monkeypatch.setattr(Shown, name, fails)
        found = ask(app, path)
        assert found.status_code == 500
        assert found.json() == {"error": "this could not be answered: the server's log says why"}
        assert {header: found.headers.get(header) for header in HEADERS} == HEADERS
    assert "secret" in caplog.text


def test_a_damaged_index_tells_no_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = make_place(tmp_path, 8)
    app = app_of(place)
    for file in place.index.iterdir():
        if file.suffix in (".parquet", ".arrow"):
            content = bytearray(file.read_bytes())
            content[len(content) // 3 : len(content) // 2] = b"\xff" * (len(content) // 2 - len(content) // 3)
            file.write_bytes(content)
    for path in ADDRESSES:
        found = ask(app, path)
        assert str(tmp_path) not in found.text
        assert "Traceback" not in found.text
        assert {header: found.headers.get(header) for header in HEADERS} == HEADERS


def test_data_that_cannot_be_opened_tells_no_path(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    settings, begun = place.run / "config.toml", place.run / "started.json"
    kept = settings.read_text(), begun.read_text()
    try:
        settings.write_text(f'[data]\npath = "{place.run}/gone.csv"\n')
        begun.unlink()  # it tells that the settings were edited
        found = ask(make_app(place.run), "/api/data")
    finally:
        settings.write_text(kept[0])
        begun.write_text(kept[1])
    assert found.status_code == 200
    assert "the server's log says why" in found.json()["note"]
    assert str(place.run) not in found.text
    assert "gone.csv" in caplog.text


@pytest.mark.parametrize("text", ["cat\r\nERROR forged line", "\x1b[2Jcat", "%0d%0aforged", "\u2028forged", "{0}%s%n"])
def test_requests_write_nothing_into_the_log(app: Any, caplog: pytest.LogCaptureFixture, text: str) -> None:
    caplog.set_level(logging.DEBUG, "steelyard")
    for path, name in (("/api/search", "q"), ("/api/labels", "text"), ("/api/item", "id"), ("/api/label", "name")):
        found = ask(app, path, params={name: text})
        assert found.status_code < 500
        assert found.headers["content-type"] == "application/json"
    assert [record for record in caplog.records if record.name.startswith("steelyard")] == []


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(20)
        client.sendall(request)
        return client.recv(65536)


@pytest.mark.parametrize(
    ("request_", "statuses"),
    [
        (b"GET /api/run HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n\r\n", (400,)),
        (b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", (400,)),
        (b"GET /api/run HTTP/1.1\r\n\r\n", (400,)),
        (b"GET /api/run HTTP/1.0\r\n\r\n", (421,)),
        (b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1@evil.example\r\n\r\n", (400, 421)),
        (b"GET http://evil.example/api/run HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", (400, 404)),
        (b"GET /api/run HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1\r\n\r\n", (421,)),
        (
            b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            (400, 413),
        ),
        (b"GET /api/labels?text=%0d%0aX-Evil:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", (200,)),
    ],
)
def test_forged_requests(port: int, request_: bytes, statuses: tuple[int, ...]) -> None:
    answer = raw(port, request_)
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert int(answer.split(b" ", 2)[1]) in statuses
    assert b"evil" not in head


@pytest.fixture(scope="module")
def port(place: Place) -> Any:
    with running(app_of(place, hosts=("127.0.0.1", "localhost"))) as number:
        yield number


def test_a_query_is_no_sql(tmp_path: Path) -> None:
    place = make_place(tmp_path, 6)
    app = app_of(place)
    for text in ("cat'; DROP TABLE items; --", "cat\") UNION SELECT * FROM read_csv('/etc/passwd') --", '"cat\'"'):
        assert ask(app, "/api/search", params={"q": text}).status_code == 400
    nasty = next(name for name in NAMES if "DROP" in name)
    assert len(ask(app, "/api/search", params={"wanted": nasty}).json()["hits"]) == 6
    with Index.open(place.index) as index:
        assert index.n_items == 6
