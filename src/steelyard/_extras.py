"""Packages that only some uses need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingPackage(ImportError, ValueError):
    """Raised where a package is not installed; the sentence tells what needs it and how to install it."""


@contextmanager
def needed(user: str, install: str) -> Iterator[None]:
    """Tell in one sentence which package is missing, where an import inside fails.

    Args:
        user: what needs it, with the verb, such as "plots need".
        install: what pip is to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackage(f"{user} {error.name}, which is not installed: pip install {install}") from None
