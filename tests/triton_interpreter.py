"""Triton's interpreter beside a numpy that no longer turns an array of one element into a number.

triton 3.6 reads the bounds of a loop by int(array of shape (1,)), which numpy 2.4 refuses; `mend` reads the element.
"""

from __future__ import annotations

from typing import Any


def mend() -> None:
    """Let loops with computed bounds run in the interpreter; does nothing where Triton is missing."""
    try:
        from triton.runtime import interpreter  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return
    patch = interpreter._patch_lang_tensor

    def mended(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = mended
