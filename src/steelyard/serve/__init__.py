"""Serve a run: a web page and a JSON API for its index. Needs the extra `serve`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from steelyard._extras import needed

if TYPE_CHECKING:
    from fastapi import FastAPI

    from steelyard.labels import Labels
    from steelyard.search import Index
    from steelyard.serve.review import Review

__all__ = ["make_app", "serve"]


def make_app(
    run_folder: str | os.PathLike[str],
    index: Index | str | os.PathLike[str] | None = None,
    *,
    labels: Labels | None = None,
    images: str | os.PathLike[str] | None = None,
    hosts: tuple[str, ...] | None = ("127.0.0.1", "localhost", "[::1]"),
    review: Review | None = None,
) -> FastAPI:
    """Return the ASGI application that shows a finished run.

    Args:
        run_folder: of a finished run.
        index: what is searched, an `Index` or its folder; by default `index/` in the run folder. One that is given as
            a folder is followed: what is appended to it shows within a second.
        labels: what is true of the items, by their ids; by default those of the run's own data.
        images: only images inside this folder are shown, links followed; by default the folder that was named when the
            run was trained. An index names files, never this folder.
        hosts: names under which the application may be asked for, a guard against other sites' scripts that reach a
            loopback address under their own name; None for any.
        review: questions about labels for people to answer, None for none: then nothing can be written.
    """
    _check_extra()
    from steelyard.serve.app import build
    from steelyard.serve.run_view import Current

    return build(Current(run_folder, index, labels, images), hosts, review)


def serve(
    run: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    index: str | os.PathLike[str] | None = None,
    images: str | os.PathLike[str] | None = None,
    review: str | os.PathLike[str] | None = None,
    answers: str | os.PathLike[str] | None = None,
) -> None:
    """Show a run in browsers until Ctrl-C or SIGTERM; requests in progress are finished first.

    Args:
        run: the folder of a finished run.
        host: the address to listen on; all but loopback lets others see the images.
        port: 0 takes a free one.
        index, images: see `make_app`.
        review: a queue of questions for people to answer, which `steelyard audit` and `steelyard next` write.
        answers: the CSV file that their answers are appended to; by default beside the queue.
    """
    _check_extra()
    from steelyard.serve.review import Review
    from steelyard.serve.server import run_server

    if review is None and answers is not None:
        raise ValueError("--answers is given, but nothing is asked: name a queue of questions with --review")
    run_server(run, host, port, index, images, None if review is None else Review(review, answers))


def _check_extra() -> None:
    with needed("the page needs", "'steelyard[serve]'"):
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
