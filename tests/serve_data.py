"""A small run with an index of real picture files: what the tests of the page and its API share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from small_run import saved_run, small_run
from steelyard.labels import Labels
from steelyard.search import Index
from steelyard.serve import make_app

NASTY = '<img src=x onerror="window.hacked=1">'
NAMES = ("cat", "dog", "traffic light", NASTY, "'; DROP TABLE items; --", "two\nlines")


class Place(NamedTuple):
    """A run folder, the index in it, the folder of its pictures, and what is true of the items."""

    run: Path
    index: Path
    images: Path
    ids: list[str]
    probabilities: np.ndarray[Any, Any]
    labels: Labels


def make_place(folder: Path, n: int = 60) -> Place:
    g = np.random.default_rng(3)
    run = saved_run(folder / "run", small_run()).path
    images = folder / "pictures"
    images.mkdir()
    ids = [f"item {i:03d}" for i in range(n)]
    for i, name in enumerate(ids):
        size = (640, 400) if i % 2 else (300, 500)
        Image.new("RGB", size, tuple(int(c) for c in g.integers(0, 255, 3))).save(images / f"{name}.jpg")
    p = g.random((n, len(NAMES))).astype(np.float32)
    y = (g.random(p.shape) < p).astype(np.int8)
    y[g.random(p.shape) < 0.1] = -1
    paths = [str(images / f"{name}.jpg") for name in ids]
    paths[-1] = None  # type: ignore[call-overload]
    embeddings = np.random.default_rng(4).normal(size=(n, 8))
    Index.build(run / "index", ids, p, NAMES, paths, embeddings=embeddings).close()
    return Place(run, run / "index", images, ids, p, Labels(y, NAMES, ids))


def app_of(place: Place, **options: Any) -> Any:
    return make_app(place.run, labels=place.labels, **{"images": place.images, **options})


@contextmanager
def running(app: Any, **patience: float) -> Iterator[int]:
    """Serve `app` from another thread and give the port."""
    import uvicorn

    from steelyard.serve.connections import PatientProtocol
    from steelyard.serve.server import _listen

    class Protocol(PatientProtocol):
        request_seconds = patience.get("request_seconds", 10.0)
        response_seconds = patience.get("response_seconds", 60.0)

    with _listen("127.0.0.1", 0) as listening:
        settings = uvicorn.Config(app, http=Protocol, log_level="critical", h11_max_incomplete_event_size=16 << 10)
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        try:
            while not server.started:
                thread.join(0.01)
                assert thread.is_alive()
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
