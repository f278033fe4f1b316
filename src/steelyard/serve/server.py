"""The server: listens on a socket, runs the application, shuts down in order."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from pathlib import Path

import uvicorn

from steelyard._signals import handling
from steelyard.report.headline import plural
from steelyard.run.search import open_index, outdated
from steelyard.search import Index
from steelyard.serve import make_app
from steelyard.serve.connections import PatientProtocol
from steelyard.serve.review import Review
from steelyard.serve.run_view import images_of

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MOST_CONNECTIONS = 512
_SWITCH = 0.001  # seconds after which a busy thread yields to the event loop
_GRACE = 5  # seconds for requests in progress when asked to stop


def run_server(
    run: str | os.PathLike[str],
    host: str,
    port: int,
    index: str | os.PathLike[str] | None,
    images: str | os.PathLike[str] | None,
    review: Review | None = None,
) -> None:
    """See `serve`."""
    listening = _listen(host, port)
    with listening:
        local = _is_loopback(host)
        app = make_app(run, index, images=images, hosts=(*LOOPBACK, host) if local else None, review=review)
        settings = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            lifespan="on",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=_GRACE,
            h11_max_incomplete_event_size=16 << 10,
        )
        with open_index(index or run) as opened:
            warnings = [outdated(opened, run) if index is None else "", _unseen(opened, images or images_of(run))]
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}"
        lines = [f"Serving {os.fspath(run)} at {address} (Ctrl-C stops)", *warnings]
        if review is not None:
            lines.append(f"Review {plural(len(review.questions), 'question')} at {address}/review#token={review.token}")
            lines.append(f"Answers go to {review.file}; whoever has that address can give them.")
        lines += [] if local else ["Beware: others in the network can see its images."]
        sys.setswitchinterval(_SWITCH)
        with handling(lambda *_: None):  # Uvicorn raises the signal that stopped it again at its end
            _Server(settings, [line for line in lines if line]).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that prints some lines as soon as it answers."""

    def __init__(self, settings: uvicorn.Config, lines: list[str]) -> None:
        super().__init__(settings)
        self._lines = lines

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print("\n".join(self._lines), flush=True)


def _unseen(index: Index, images: str | os.PathLike[str] | None) -> str:
    """Return a warning if the index lists images that are not shown, else ""."""
    first = index.first_path()
    if first is None or (images is not None and Path(first).is_relative_to(Path(images).absolute())):
        return ""
    where = "their folder is not known" if images is None else f"not all are inside {os.fspath(images)}"
    return f"Beware: images of the index are not shown, {where}: name it with --images, such as {Path(first).parent}."


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ValueError(f"port is {port}: give 0 to 65535, 0 for any that is free")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host} port {port} ({error.strerror or error}): give another with --host or --port"
        ) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
