"""The ASGI application: the addresses and their answers."""

from __future__ import annotations

import asyncio
import gc
import gzip
import hashlib
import mimetypes
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from steelyard import __version__
from steelyard.search import QueryError
from steelyard.serve import api_types
from steelyard.serve.guards import Busy, Guard, Refusal, Writes, problem
from steelyard.serve.query_form import MOST_CHIPS
from steelyard.serve.review import Review
from steelyard.serve.review_routes import WRITE, add_review
from steelyard.serve.run_view import Current, RunView
from steelyard.serve.workers import AnswerCache, Workers

MOST_HITS = 100
"""The most items in one answer."""
DEEPEST = 10_000
"""The largest offset of a search."""
STATIC = Path(__file__).parent / "static"
_LONGEST_NAME = 2000
_MEMORY = {"pictures": 96 << 20, "answers": 48 << 20}
_WORTH_COMPRESSING = 1400  # bytes that fit into one packet anyway
_WAIT = 0.03  # seconds that a request waits for a newer generation while others come: one that takes longer shows later
_IDLE = 0.1  # seconds without a request after which the next one waits for the newest generation, however long it takes

Name = Annotated[str, Query(max_length=_LONGEST_NAME)]
Names = Annotated[list[Annotated[str, Query(max_length=_LONGEST_NAME)]], Query(max_length=MOST_CHIPS)]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": api_types.Problem} for status in (400, 403, 404, 409, 411, 413, 414, 415, 421, 422, 429, 500, 503)
}


def build(current: Current, hosts: tuple[str, ...] | None, review: Review | None = None) -> FastAPI:
    """Return the application that shows `current`; for `hosts` see `make_app`."""
    threads = max(2, os.cpu_count() or 2)
    searching, drawing, looking, writing = Workers(threads), Workers(threads, waiting=512), Workers(1), Workers(1)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(current.shown.warm_up)
        gc.collect()
        gc.freeze()  # imported objects are excluded from garbage collection, which would delay a request by 100 ms
        yield
        gc.unfreeze()
        for workers in (searching, drawing, looking, writing):
            workers.close()

    app = FastAPI(
        title="Steelyard",
        version=__version__,
        summary="Search items by the probabilities of their labels.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
        lifespan=lifespan,
    )
    _add_problems(app)
    replies = _Replies(current, searching, drawing, looking)
    _add_answers(app, replies, review is not None)
    if review is not None:
        add_review(app, review, writing, replies.now, replies.draw, PROBLEMS)
    # Starlette's StaticFiles and GZip read and compress a file for each request; these few are kept in memory instead.
    files = {file.name: _packed(file.read_bytes()) for file in STATIC.iterdir()}

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise HTTPException(404)
        return _reply(request, files[name], mimetypes.guess_type(name)[0] or "text/plain", "no-cache")

    for path in ("/", "/label", "/data", "/static/{name}", *(["/review"] if review is not None else [])):
        app.add_route(path, static)
    app.add_middleware(Guard, hosts=hosts, writes=None if review is None else Writes(WRITE, review.token))
    return app


class _Replies:
    """Replies from the current view; worker threads compute them, and the last ones are cached."""

    def __init__(self, current: Current, searching: Workers, drawing: Workers, looking: Workers) -> None:
        self._current, self._searching, self._drawing, self._looking = current, searching, drawing, looking
        self._answers, self._pictures = AnswerCache(_MEMORY["answers"]), AnswerCache(_MEMORY["pictures"])

    async def now(self) -> RunView:
        """Return the current view; now and then a thread looks for a newer one: the event loop reads no files."""
        overdue = self._current.overdue()
        if overdue is not None:
            look = asyncio.ensure_future(self._looking.run(self._current.look))
            with suppress(TimeoutError, Busy):
                await asyncio.wait_for(asyncio.shield(look), _WAIT if overdue < _IDLE else None)
        return self._current.shown

    async def answer(self, request: Request, make: Callable[..., dict[str, Any]], *given: Any) -> Response:
        """Reply with the result of a method of `RunView`, computed in a thread unless it is cached."""
        shown = await self.now()
        key = (make.__name__, *shown.version, *(tuple(x) if isinstance(x, list) else x for x in given))

        def made() -> bytes:
            return _packed(bytes(JSONResponse(make(shown, *given)).body))

        body = await self._answers.get(key, partial(self._searching.run, made))
        reply = _reply(request, body, "application/json", "no-cache")
        reply.headers["steelyard-index"] = shown.index.uuid  # a page drawn from another index reloads
        return reply

    async def thumbnail(self, request: Request, id: str, size: str) -> Response:
        """Reply with the picture of an item."""
        shown = await self.now()
        return await self.draw(request, shown, await self._drawing.run(shown.image, id), size)

    async def draw(self, request: Request, shown: RunView, image: tuple[Path, int, int], size: str) -> Response:
        """Reply with an image file as a JPEG of this size."""
        picture = await self._pictures.get(
            (*image, size), partial(self._drawing.run, shown.pictures.make, image[0], size)
        )
        return _reply(request, picture, "image/jpeg", "private, max-age=600")


def _add_answers(app: FastAPI, replies: _Replies, with_review: bool) -> None:
    """Add the addresses of the API; `with_review`: whether the page offers to review labels."""
    answer = replies.answer

    @app.get("/api/run", response_model=api_types.RunFacts, responses=PROBLEMS)
    async def run(request: Request) -> Response:
        """Return facts about the run and its index."""
        return await answer(request, RunView.facts, with_review)

    @app.get("/api/labels", response_model=api_types.LabelList, responses=PROBLEMS)
    async def labels(request: Request, text: Name = "", k: Annotated[int, Query(ge=1, le=MOST_HITS)] = 20) -> Response:
        """Return labels that begin with, contain or resemble a text, as a person types it."""
        return await answer(request, RunView.labels, text, k)

    @app.get("/api/search", response_model=api_types.SearchResult, responses=PROBLEMS)
    async def search(
        request: Request,
        q: Name = "",
        present: Names = [],  # noqa: B006  (FastAPI copies defaults)
        absent: Names = [],  # noqa: B006
        limit: Names = [],  # noqa: B006
        k: Annotated[int, Query(ge=1, le=MOST_HITS)] = 20,
        offset: Annotated[int, Query(ge=0, le=DEEPEST)] = 0,
        like: Name = "",
    ) -> Response:
        """Return the items that most probably fit a query, the most probable first.

        `q` is a query such as `dog & ~car`; `present` and `absent` are labels, joined to it by AND; `limit`,
        `LABEL:VALUE`, is the least probability of a present label and the greatest of an absent one; `like` is an
        item, and those like it come first. Without any of them the result is empty.
        """
        return await answer(request, RunView.search, q, present, absent, limit, k, offset, like)

    @app.get("/api/item", response_model=api_types.ItemFacts, responses=PROBLEMS)
    async def item(request: Request, id: Name) -> Response:
        """Return an item: the probability of each label, and its known labels."""
        return await answer(request, RunView.item, id)

    @app.get("/api/label", response_model=api_types.LabelPage, responses=PROBLEMS)
    async def label(request: Request, name: Name) -> Response:
        """Return a label's reliability, precision and recall, and its most and least probable items."""
        return await answer(request, RunView.label, name)

    @app.get("/api/data", response_model=api_types.DataPage, responses=PROBLEMS)
    async def data(request: Request) -> Response:
        """Return how frequent labels are in training, and which occur together."""
        return await answer(request, RunView.data)

    @app.get(
        "/api/thumbnail",
        response_class=Response,
        responses={**PROBLEMS, 200: {"content": {"image/jpeg": {}}, "description": "a JPEG picture"}},
    )
    async def thumbnail(request: Request, id: Name, size: Literal["small", "large"] = "small") -> Response:
        """Return the picture of an item, its longer side at most 320 or 1280 pixels."""
        return await replies.thumbnail(request, id, size)


def _packed(body: bytes) -> bytes:
    """Return `body` compressed where that is worth it."""
    return gzip.compress(body, 5, mtime=0) if len(body) > _WORTH_COMPRESSING else body


def _reply(request: Request, body: bytes, kind: str, keep: str) -> Response:
    """Return `body`, packed or not, as a response, 304 where the client has it; `keep` is a Cache-Control header."""
    headers = {"cache-control": keep, "etag": f'"{hashlib.sha256(body).hexdigest()[:24]}"'}
    if headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if body.startswith(b"\x1f\x8b"):  # gzip
        headers["vary"] = "accept-encoding"
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
    return Response(body, 200, headers, media_type=kind)


def _add_problems(app: FastAPI) -> None:
    """Turn every refusal into `api_types.Problem`, one sentence."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return problem(error.status, str(error)[:500], error.headers)

    @app.exception_handler(QueryError)
    async def not_understood(_: Request, error: QueryError) -> Response:
        return problem(400, error.what, at=error.at, query=error.text[:_LONGEST_NAME])

    @app.exception_handler(RequestValidationError)
    async def out_of_bounds(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return problem(422, f"{place[:80]}: {first['msg'][:200]}")

    @app.exception_handler(TimeoutError)
    async def too_slow(_: Request, error: TimeoutError) -> Response:
        return problem(503, str(error))

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return problem(error.status_code, "there is nothing at this address")
