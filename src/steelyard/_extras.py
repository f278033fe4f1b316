"""Packages that only some uses need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingPackage(ImportError, ValueError):
    """Raised where a package is not installed; the message says what needs it and how to install it."""


@contextmanager
def needed(user: str, install: str) -> Iterator[None]:
    """Turn a failed import inside into one sentence that names the missing package.

    Args:
        user: what needs it, with the verb, such as "plots need".
        install: what pip is to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackage(f"{user} {error.name}, which is not installed: pip install {install}") from None
