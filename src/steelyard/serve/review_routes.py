"""Addresses of the review page, which exist only with `steelyard serve --review`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from starlette.responses import JSONResponse

from steelyard.serve import api_types
from steelyard.serve.guards import MOST_BODY, Refusal
from steelyard.serve.review import Review
from steelyard.serve.run_view import RunView
from steelyard.serve.workers import Workers

WRITE = "/api/review"
"""The only address that takes anything but GET."""
MOST_QUESTIONS = 50
_FIELDS = {"id", "label", "answer", "who"}


class BadBody(Refusal):
    """The body of a request is not what the page sends."""

    status = 422


def add_review(
    app: FastAPI,
    review: Review,
    writing: Workers,
    now: Callable[[], Awaitable[RunView]],
    draw: Callable[[Request, RunView, tuple[Path, int, int], str], Awaitable[Response]],
    problems: dict[int | str, dict[str, Any]],
) -> None:
    """Add the addresses of the review page.

    Args:
        app: the application.
        review: the queue and its answers.
        writing: the one thread that reads and writes the file of answers.
        now: gives what is shown.
        draw: replies with a picture file in a size.
        problems: the refusals that OpenAPI is to describe.
    """

    @app.get(WRITE, response_model=api_types.ReviewPage, responses=problems)
    async def questions(
        start: Annotated[int, Query(ge=0, le=1 << 30)] = 0, k: Annotated[int, Query(ge=1, le=MOST_QUESTIONS)] = 10
    ) -> Response:
        """Return questions without an answer from a place in the queue on."""
        return JSONResponse(await writing.run(review.questions_from, start, k), headers={"cache-control": "no-store"})

    @app.post(WRITE, response_model=api_types.ReviewProgress, responses=problems)
    async def answer(request: Request) -> Response:
        """Append an answer: {"id", "label", "answer": "y" | "n" | "?" | "undo", "who"}."""
        given = _fields(await request.body())
        done = await writing.run(review.answer, given["id"], given["label"], given["answer"], given["who"])
        return JSONResponse(done, headers={"cache-control": "no-store"})

    @app.get(
        f"{WRITE}/picture",
        response_class=Response,
        responses={**problems, 200: {"content": {"image/jpeg": {}}, "description": "a JPEG picture"}},
    )
    async def picture(
        request: Request, id: Annotated[str, Query(max_length=2000)], size: Literal["small", "large"] = "large"
    ) -> Response:
        """Return the picture of an item of the queue, which must lie in the folder of images."""
        shown = await now()
        return await draw(request, shown, await writing.run(partial(_file, review, shown), id), size)


def _file(review: Review, shown: RunView, id: str) -> tuple[Path, int, int]:
    """Return the image of an item: the queue's, else the index's."""
    listed = review.path(id)
    return shown.pictures.stamped(listed) if listed else shown.image(id)


def _fields(body: bytes) -> dict[str, str]:
    """Return the fields of an answer."""
    if len(body) > MOST_BODY:
        raise BadBody("the body is too long")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise BadBody("the body is not JSON") from None
    if not (isinstance(given, dict) and set(given) == _FIELDS and all(isinstance(x, str) for x in given.values())):
        raise BadBody("the body must be an object with the texts id, label, answer and who")
    return given
