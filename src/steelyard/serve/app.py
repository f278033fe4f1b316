"""The application: what may be asked for, under which address."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from steelyard import __version__
from steelyard.labels import Labels
from steelyard.search import Index, QueryError
from steelyard.serve import shapes
from steelyard.serve.asking import MOST_CHIPS, Unclear
from steelyard.serve.current import Current
from steelyard.serve.guards import Guard
from steelyard.serve.pictures import NoPicture, Picture
from steelyard.serve.recent import Recent
from steelyard.serve.replies import as_json, reply
from steelyard.serve.shown import Missing, Shown, Unsearchable
from steelyard.serve.static_files import static_files
from steelyard.serve.workers import Busy, Workers

MOST_HITS = 100
"""Items of one answer."""
DEEPEST = 10_000
"""How far into the ranking one may ask."""
_LONGEST_NAME = 2000
_PAGES = ("/", "/label", "/data")
_MEMORY = {"pictures": 96 << 20, "answers": 48 << 20}
_WAIT = 0.03  # seconds that a request waits for a newer generation while others come: one that takes longer shows later
_IDLE = 0.1  # seconds without a request after which the next one waits for the newest generation, however long it takes

Name = Annotated[str, Query(max_length=_LONGEST_NAME)]
Names = Annotated[list[Annotated[str, Query(max_length=_LONGEST_NAME)]], Query(max_length=MOST_CHIPS)]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": shapes.Problem, "description": what}
    for status, what in {
        400: "not understood",
        404: "not there",
        413: "the request has a body",
        414: "the address is too long",
        421: "the host name is not served",
        422: "out of bounds",
        500: "a failure of the server, which its log describes",
        503: "too busy",
    }.items()
}


def build(
    run_folder: str | os.PathLike[str],
    index: Index | str | os.PathLike[str] | None,
    labels: Labels | None,
    images: str | os.PathLike[str] | None,
    hosts: tuple[str, ...] | None,
) -> FastAPI:
    """Return the application; for the arguments see `make_app`."""
    current = Current(run_folder, index, labels, images)
    threads = max(2, os.cpu_count() or 2)
    searching, drawing, looking = Workers(threads), Workers(threads, waiting=512), Workers(1)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(current.shown.warm_up)
        gc.collect()
        gc.freeze()  # what was imported is never looked through again, which would hold up a request for 100 ms
        yield
        gc.unfreeze()
        for workers in (searching, drawing, looking):
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
    _add_answers(app, current, searching, drawing, looking)
    _add_pages(app)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _add_answers(app: FastAPI, current: Current, searching: Workers, drawing: Workers, looking: Workers) -> None:
    answers: Recent[bytes] = Recent(_MEMORY["answers"], len)
    pictures: Recent[Picture] = Recent(_MEMORY["pictures"], lambda picture: len(picture.data))

    async def now() -> Shown:
        """Return what is shown, which a thread looks for again at times: the event loop reads no file."""
        overdue = current.overdue()
        if overdue is not None:
            look = asyncio.ensure_future(looking.run(current.look))
            with suppress(TimeoutError, Busy):
                await asyncio.wait_for(asyncio.shield(look), _WAIT if overdue < _IDLE else None)
        return current.shown

    async def answer(request: Request, shown: Shown, make: Callable[..., dict[str, Any]], *given: Any) -> Response:
        """Reply with what `make` gives of what was given, made in a thread unless it was made lately."""

        def made() -> Awaitable[bytes]:
            return searching.run(lambda: as_json(make(*given)))

        key = (make.__name__, *shown.version, *(tuple(x) if isinstance(x, list) else x for x in given))
        return identified(reply(request, await answers.get(key, made)), shown)

    def identified(response: Response, shown: Shown) -> Response:
        """Say which index an answer is from: a page drawn from another one reloads."""
        response.headers["steelyard-index"] = shown.index.uuid
        return response

    @app.get("/api/run", response_model=shapes.RunFacts, responses=PROBLEMS)
    async def run(request: Request) -> Response:
        """Return what is shown."""
        shown = await now()
        return identified(reply(request, as_json(shown.facts())), shown)

    @app.get("/api/labels", response_model=shapes.LabelList, responses=PROBLEMS)
    async def labels(request: Request, text: Name = "", k: Annotated[int, Query(ge=1, le=MOST_HITS)] = 20) -> Response:
        """Return labels that begin with, hold or resemble a text: what a person may be typing."""
        shown = await now()
        return await answer(request, shown, shown.labels, text, k)

    @app.get("/api/search", response_model=shapes.SearchResult, responses=PROBLEMS)
    async def search(
        request: Request,
        q: Name = "",
        wanted: Names = [],  # noqa: B006  (FastAPI copies defaults)
        unwanted: Names = [],  # noqa: B006
        limit: Names = [],  # noqa: B006
        k: Annotated[int, Query(ge=1, le=MOST_HITS)] = 20,
        offset: Annotated[int, Query(ge=0, le=DEEPEST)] = 0,
    ) -> Response:
        """Return the items that most probably are what is asked for.

        `q` is a query such as `dog & ~car`; `wanted` and `unwanted` are labels, joined to it by AND; `limit`,
        `LABEL:VALUE`, is the least probability of a wanted label and the greatest of an unwanted one. Without any of
        them nothing is asked for and nothing is found.
        """
        shown = await now()
        return await answer(request, shown, shown.search, q, wanted, unwanted, limit, k, offset)

    @app.get("/api/item", response_model=shapes.ItemFacts, responses=PROBLEMS)
    async def item(request: Request, id: Name) -> Response:
        """Return an item: the probability of each label, and what is known to be true."""
        shown = await now()
        return await answer(request, shown, shown.item, id)

    @app.get("/api/label", response_model=shapes.LabelPage, responses=PROBLEMS)
    async def label(request: Request, name: Name) -> Response:
        """Return how a label does: reliability, precision and recall, the items it is surest about."""
        shown = await now()
        return await answer(request, shown, shown.label, name)

    @app.get("/api/data", response_model=shapes.DataPage, responses=PROBLEMS)
    async def data(request: Request) -> Response:
        """Return how frequent labels are in training, and which come together."""
        shown = await now()
        return await answer(request, shown, shown.data)

    @app.get(
        "/api/thumbnail",
        response_class=Response,
        responses={**PROBLEMS, 200: {"content": {"image/jpeg": {}}, "description": "a JPEG picture"}},
    )
    async def thumbnail(request: Request, id: Name, size: Literal["small", "large"] = "small") -> Response:
        """Return the picture of an item, its longer side at most 320 or 1280 pixels."""
        shown = await now()
        image = await drawing.run(partial(shown.image, id))
        picture = await pictures.get((image, size), lambda: drawing.run(partial(shown.picture, image, size)))
        return reply(request, picture.data, "image/jpeg", tag=picture.tag, keep="private, max-age=600")


def _add_pages(app: FastAPI) -> None:
    files = static_files()

    async def page(request: Request) -> Response:
        found = files["index.html"]
        return reply(request, found.body, found.kind, packed=found.packed)

    for path in _PAGES:
        app.add_api_route(path, page, include_in_schema=False)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        found = files.get(name)
        if found is None:
            raise Missing("there is no such file")
        return reply(request, found.body, found.kind, packed=found.packed)


def _add_problems(app: FastAPI) -> None:
    """Turn every refusal into `shapes.Problem`, one sentence."""

    def problem(request: Request, status: int, content: dict[str, Any]) -> Response:
        return reply(request, as_json(content), status=status, keep="no-store")

    @app.exception_handler(QueryError)
    async def not_understood(request: Request, error: QueryError) -> Response:
        return problem(request, 400, {"error": error.what, "at": error.at, "query": error.text[:_LONGEST_NAME]})

    @app.exception_handler(Unclear)
    async def unclear(request: Request, error: Unclear) -> Response:
        return problem(request, 400, {"error": str(error)[:500]})

    @app.exception_handler(RequestValidationError)
    async def out_of_bounds(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return problem(request, 422, {"error": f"{place[:80]}: {first['msg'][:200]}"})

    @app.exception_handler(Missing)
    async def missing(request: Request, error: Missing) -> Response:
        return problem(request, 404, {"error": str(error)})

    @app.exception_handler(NoPicture)
    async def no_picture(request: Request, error: NoPicture) -> Response:
        return problem(request, 404, {"error": str(error)})

    @app.exception_handler(Unsearchable)
    async def unsearchable(request: Request, error: Unsearchable) -> Response:
        logging.getLogger("steelyard.serve").error("%s", error)
        return problem(request, 500, {"error": "the index cannot be searched: the server's log says why"})

    @app.exception_handler(TimeoutError)
    async def too_slow(request: Request, error: TimeoutError) -> Response:
        return problem(request, 503, {"error": str(error)})

    @app.exception_handler(Busy)
    async def busy(request: Request, _: Busy) -> Response:
        found = problem(request, 503, {"error": "too much is asked for at once: try again in a moment"})
        found.headers["retry-after"] = "2"
        return found

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        return problem(request, error.status_code, {"error": "there is nothing at this address"})
