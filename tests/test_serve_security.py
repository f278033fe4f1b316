"""What the server refuses, and what it never gives away: beside the ten risks that OWASP lists."""

# ruff: noqa: E402  (what the extras bring is imported after it is known to be there)

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the page needs the extra serve")
pytest.importorskip("duckdb", reason="searching needs the extra search")
httpx = pytest.importorskip("httpx", reason="the API is asked through httpx")

from PIL import Image

from serve_data import NAMES, Place, app_of, make_place, running
from steelyard.search import Index
from steelyard.serve import make_app, serve
from steelyard.serve.app import STATIC
from steelyard.serve.guards import HEADERS, Missing
from steelyard.serve.pictures import Pictures
from steelyard.serve.run_view import RunView
from steelyard.serve.server import _is_loopback

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


@pytest.fixture(scope="module")
def port(place: Place) -> Any:
    with running(app_of(place, hosts=("127.0.0.1", "localhost"))) as number:
        yield number


def ask(app: Any, path: str, method: str = "GET", *, failing: bool = False, **options: Any) -> Any:
    """Ask once; a failure of the server is raised here, or with `failing` answered as a browser would see it."""

    async def go() -> Any:
        asked = httpx.ASGITransport(app, raise_app_exceptions=not failing)
        async with httpx.AsyncClient(transport=asked, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **options)

    return asyncio.run(go())


def has_the_headers(found: Any) -> bool:
    return {name: found.headers.get(name) for name in HEADERS} == HEADERS


def test_every_address_is_in_the_list(app: Any) -> None:
    """Else what is tested here would fall behind what is served."""
    told = {path.split("?")[0] for path in ADDRESSES}
    assert set(ask(app, "/api/openapi.json").json()["paths"]) <= told


@pytest.mark.parametrize("path", ADDRESSES)
def test_every_reply_is_guarded_and_asking_changes_nothing(app: Any, place: Place, path: str) -> None:
    """Headers on all; no other site may read it; pictures are kept by the browser that asked, failures by nobody."""

    def files() -> dict[Path, tuple[int, int]]:
        return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in place.run.rglob("*")}

    before = files()
    found = ask(app, path, headers={"origin": "https://evil.example", "sec-fetch-site": "cross-site"})
    assert found.status_code == (404 if path.endswith(("=no", "/nothing")) else 400 if path.endswith("(") else 200)
    assert has_the_headers(found)
    assert "unsafe" not in found.headers["content-security-policy"]
    assert not [name for name in found.headers if name.startswith("access-control-")]
    assert {"server", "set-cookie"}.isdisjoint(found.headers)
    is_picture = path.startswith("/api/thumbnail")
    kept = "no-store" if found.status_code >= 400 else "private, max-age=600" if is_picture else "no-cache"
    assert found.headers["cache-control"] == kept
    assert files() == before


@pytest.mark.parametrize("path", ["/", "/api/labels", "/api/search"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH", "TRACE", "CONNECT"])
def test_nothing_but_get_is_answered(app: Any, method: str, path: str) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "GET"}
    found = ask(app, path, method, headers=asked)
    assert found.status_code == 405
    assert found.headers["allow"] == "GET"
    assert has_the_headers(found)
    assert "evil" not in found.text + str(found.headers)


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/api/search?q=" + "a" * 9000, {}, 414),
        ("/" + "a" * 9000, {}, 414),
        ("/api/run", {"content": b"x" * 10}, 413),
        ("/api/run", {"headers": {"transfer-encoding": "chunked"}}, 413),
        ("/api/run", {"headers": {"host": "evil.example"}}, 421),
        ("/api/run", {"headers": {"host": "127.0.0.1.evil.example:8000"}}, 421),
        ("/api/run", {"headers": {"host": ""}}, 421),
        ("/api/run", {"headers": {"host": "LOCALHOST:8000"}}, 200),
        ("/api/run", {"headers": {"host": "[::1]:8000"}}, 200),
        ("/static/main.js", {"headers": {"range": "bytes=0-1," * 900}}, 200),
    ],
)
def test_what_no_page_of_ours_asks_is_refused(app: Any, path: str, options: dict[str, Any], status: int) -> None:
    assert ask(app, path, **options).status_code == status


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, OSError, KeyError])
def test_a_failure_of_ours_tells_nothing(
    app: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise kind("secret of /home/someone")

    for name, path in {"facts": "/api/run", "image": "/api/thumbnail?id=item 001", "item": "/api/item?id=x"}.items():
        monkeypatch.setattr(RunView, name, fails)
        found = ask(app, path, failing=True)
        assert found.status_code == 500
        assert found.json() == {"error": "this could not be answered: the server's log says why"}
        assert has_the_headers(found)
    assert "secret" in caplog.text


def test_a_damaged_index_tells_no_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = make_place(tmp_path, 8)
    app = app_of(place)
    files = [file for file in place.index.iterdir() if file.name != "index.json"]
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 3 : len(content) // 2] = b"\xff" * (len(content) // 2 - len(content) // 3)
        file.write_bytes(content)
    for path in ADDRESSES:
        found = ask(app, path, failing=True)
        assert str(tmp_path) not in found.text
        assert "Traceback" not in found.text
        assert has_the_headers(found)


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


def test_label_names_are_data_everywhere(app: Any) -> None:
    for name in NAMES[3:]:
        found = ask(app, "/api/search", params={"present": name, "k": 3})
        assert found.headers["content-type"] == "application/json"
        assert found.json()["terms"] == [{"label": name, "present": True}]
        assert ask(app, "/api/label", params={"name": name}).json()["name"] == name


def test_a_query_is_no_sql(app: Any, place: Place) -> None:
    for text in ("cat'; DROP TABLE items; --", "cat\") UNION SELECT * FROM read_csv('/etc/passwd') --", '"cat\'"'):
        assert ask(app, "/api/search", params={"q": text}).status_code == 400
    nasty = next(name for name in NAMES if "DROP" in name)
    assert len(ask(app, "/api/search", params={"present": nasty}).json()["hits"]) == 12
    with Index.open(place.index) as index:
        assert index.n_items == 12


def test_the_page_makes_no_markup_from_data_and_asks_no_one_else() -> None:
    for file in STATIC.iterdir():
        name, text = file.name, file.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{name} has {word}"
        outside = [part for part in text.split() if "://" in part and "www.w3.org/2000/svg" not in part]
        assert outside == [], name
        if name.endswith(".html"):
            assert " on" not in text.replace(" only", "").lower().split("<body>")[0]
            assert "<style" not in text
            assert 'style="' not in text
            assert text.count("<script") == text.count('<script src="/static/') + text.count(
                '<script type="module" src="/static/'
            )


@pytest.mark.parametrize(
    "name",
    [
        "../guards.py",
        "..%2fguards.py",
        "%2e%2e/guards.py",
        "....//guards.py",
        "/etc/passwd",
        "..%5cguards.py",
        "x" * 999,
    ],
)
def test_static_files_are_those_of_the_page_only(app: Any, name: str) -> None:
    assert ask(app, f"/static/{name}").status_code == 404
    assert {ask(app, f"/static/{other}").status_code for other in ("%00", "app.py", "", ".")} == {404}


@pytest.mark.parametrize("id", ["../../etc/passwd", "/etc/passwd", "item 000.jpg", "item 000\0", "", "\ud800", "*"])
def test_an_id_is_no_path(app: Any, id: str) -> None:
    found = ask(app, "/api/thumbnail", params={"id": id.encode("utf-8", "surrogatepass")})
    assert found.status_code in (404, 422)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one picture, and of what looks like others."""
    folder = tmp_path_factory.mktemp("images")
    root, secret = folder / "root", folder / "secret"
    root.mkdir()
    secret.mkdir()
    Image.new("RGB", (8, 8)).save(secret / "secret.jpg")
    Image.new("RGB", (8, 8)).save(root / "fine.jpg")
    (root / "text.txt").write_text("no image")
    links = {"link.jpg": secret / "secret.jpg", "folder": secret, "disguised.jpg": root / "text.txt"}
    for name, target in {**links, "inside.jpg": root / "fine.jpg", "loop.jpg": root / "loop.jpg"}.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe.jpg")
    return root


@pytest.mark.parametrize(
    "listed",
    [
        *("link.jpg", "folder/secret.jpg", "../secret/secret.jpg", "disguised.jpg", "text.txt", "loop.jpg", "pipe.jpg"),
        *("folder", "no\0file.jpg", "x" * 5000 + ".jpg", ""),
    ],
)
def test_a_listed_file_that_leads_out_of_the_folder_is_not_shown(root: Path, listed: str) -> None:
    for name in (listed, f"{root}/{listed}"):
        with pytest.raises(Missing) as refused:
            Pictures(root).allowed(name)
        assert str(root) not in str(refused.value)
    for name in ("fine.jpg", "inside.jpg", f"{root}/fine.jpg"):
        assert Pictures(root).allowed(name) == root.resolve() / "fine.jpg"


def test_an_index_does_not_say_which_images_are_shown(tmp_path: Path) -> None:
    """The operator alone names the folder of images: what the index notes, or lists outside of it, is of no account."""
    place = make_place(tmp_path, 4)
    secret = tmp_path / "secret.jpg"
    Image.new("RGB", (8, 8)).save(secret)
    (place.images / "link.jpg").symlink_to(secret)
    with Index.open(place.index) as index:
        index.append(["link", "direct"], np.ones((2, len(NAMES))), [str(place.images / "link.jpg"), str(secret)])
        index.replace([], np.zeros((0, len(NAMES))), notes={"images": "/"})
    nowhere, app = app_of(place, images=None), app_of(place)
    assert ask(nowhere, "/api/run").json()["has_images"] is False
    assert "--images" in ask(nowhere, "/api/thumbnail", params={"id": place.ids[0]}).json()["error"]
    assert ask(app, "/api/thumbnail", params={"id": place.ids[0]}).status_code == 200
    for name in ("link", "direct"):
        found = ask(app, "/api/thumbnail", params={"id": name})
        assert found.status_code == 404
        assert str(tmp_path) not in found.text


@pytest.mark.parametrize(
    ("target", "headers", "statuses"),
    [
        ("/api/run HTTP/1.1", "Host: evil.example|Host: 127.0.0.1", (400,)),
        ("/api/run HTTP/1.1", "Host: 127.0.0.1|Host: evil.example", (400,)),
        ("/api/run HTTP/1.1", "Accept: */*", (400,)),
        ("/api/run HTTP/1.0", "Accept: */*", (421,)),
        ("/api/run HTTP/1.1", "Host: 127.0.0.1@evil.example", (400, 421)),
        ("http://evil.example/api/run HTTP/1.1", "Host: 127.0.0.1", (400, 404)),
        ("/api/run HTTP/1.1", "Host: evil.example|X-Forwarded-Host: 127.0.0.1", (421,)),
        ("/api/run HTTP/1.1", "Host: 127.0.0.1|Content-Length: 5|Transfer-Encoding: chunked", (400, 413)),
        ("/api/labels?text=%0d%0aX-Evil:1 HTTP/1.1", "Host: 127.0.0.1", (200,)),
    ],
)
def test_forged_requests(port: int, target: str, headers: str, statuses: tuple[int, ...]) -> None:
    with connect(port) as client:
        client.sendall("\r\n".join([f"GET {target}", *headers.split("|"), "", ""]).encode())
        answer = client.recv(65536)
    assert int(answer.split(b" ", 2)[1]) in statuses
    assert b"evil" not in answer.partition(b"\r\n\r\n")[0].lower()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_is_known(host: str) -> None:
    assert _is_loopback(host)
    assert not any(map(_is_loopback, ("0.0.0.0", "10.0.0.1", "host")))


def connect(port: int) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port))
    found.settimeout(20)
    return found


def is_cut_off(client: socket.socket) -> bool:
    try:
        while client.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_slow_clients_are_cut_off_while_others_are_served(app: Any) -> None:
    with running(app, request_seconds=0.5, response_seconds=1.0) as port:
        silent, slow, half = connect(port), connect(port), connect(port)
        slow.sendall(b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
        half.sendall(b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert half.recv(65536).startswith(b"HTTP/1.1 200")
        half.sendall(b"G")  # a second request that never ends
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/api/run").status_code == 200
        for client in (silent, slow, half):
            with client:
                assert is_cut_off(client)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/api/run").status_code == 200


def test_a_client_that_does_not_read_is_cut_off(app: Any) -> None:
    with running(app, request_seconds=5.0, response_seconds=0.7) as port:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", port))
        request = b"GET /static/style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        deaf.settimeout(0.2)
        ended = False
        until = time.monotonic() + 20
        while not ended and time.monotonic() < until:
            try:
                deaf.sendall(request * 20)
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        deaf.close()
        assert ended


def test_a_query_of_a_megabyte_is_refused(port: int) -> None:
    with connect(port) as client:
        try:
            client.sendall(b"GET /api/search?q=" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = client.recv(65536)
        except ConnectionError:
            answer = b""
        assert not answer or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 414", b"HTTP/1.1 431"))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as fresh:
            assert fresh.get("/api/run").status_code == 200


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_server_tells_an_old_index_and_stops_in_order(tmp_path: Path, stop: signal.Signals) -> None:
    place = make_place(tmp_path, 3)
    with Index.open(place.index) as index:
        index.replace([], np.zeros((0, len(NAMES))), notes={"probabilities": "those of another day"})
    code = f"from steelyard.serve import serve\nserve({str(place.run)!r}, port=0)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert "at http://127.0.0.1:" in line, process.communicate()
        assert "Beware: the index was made before the run was" in process.stdout.readline()
        with httpx.Client(base_url=line.split(" at ")[1].split(" ")[0]) as client:  # it stays open and idle
            assert client.get("/api/search", params={"q": "cat"}, timeout=30).status_code == 200
            process.send_signal(stop)
            _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (0, "")
    finally:
        process.kill()
        process.wait()


def test_a_port_that_is_taken_is_one_sentence(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ValueError, match="cannot listen on"):
        serve(place.run, port=taken.getsockname()[1])
