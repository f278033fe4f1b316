"""Tests in Triton's interpreter.

It is chosen when Triton is first imported, so such tests run in a process of their own: a file calls itself there by
`assert_passes_inside`, and marks its tests `inside` and `outside`.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's own process")
outside = pytest.mark.skipif(INTERPRETED, reason="starts or needs no interpreter")


def assert_passes_inside(file: str) -> None:
    """Run a test file in the interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-x", "-p", "no:cacheprovider", file],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(file).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def generator() -> torch.Generator:
    """Of inputs: the same in every run, or with STEELYARD_EXAMPLES=fresh new ones, whose seed is shown on failure."""
    seed = torch.seed() % (1 << 63) if os.environ.get("STEELYARD_EXAMPLES") == "fresh" else 0
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)


def mend() -> None:
    """Let loops with computed bounds run in the interpreter, sooner; does nothing where Triton is missing.

    triton 3.6 reads the bounds by int(array of shape (1,)), which numpy 2.4 refuses; this reads the element. It also
    puts its own functions into `triton.language` anew at each launch and each call between kernels: here, where
    nothing is compiled, they are put there once for each module of kernels, and stay. The type of a tuple, asked for by
    few, and numpy's of a scalar, of which there are twenty, are not worked out anew at every operation. Products of
    bfloat16 are those of the numbers, not of the bits in which numpy keeps them.
    """
    try:
        from triton.language import core  # type: ignore[import-not-found,import-untyped,unused-ignore]
        from triton.runtime import interpreter  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return
    patch_tensor, patch, ready = interpreter._patch_lang_tensor, interpreter._patch_lang, set[int]()

    def mended_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def patched_once(kernel: Any) -> Any:
        if id(kernel.__globals__) not in ready:
            ready.add(id(kernel.__globals__))
            patch(kernel)
        return interpreter._LangPatchScope()  # nothing to take back after the launch

    def begin_tuple(self: Any, args: Any, type: Any = None) -> None:
        self.values = list(args)
        if type is not None:
            self.type = type if isinstance(type, core.tuple_type) else core.tuple_type(type)

    scalar_dtype = functools.cache(interpreter._get_np_dtype)

    def np_dtype(type: Any) -> Any:
        element = type.scalar
        return np.dtype(np.uint64) if element.is_ptr() else scalar_dtype(element)

    dot = interpreter.InterpreterBuilder.create_dot

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != core.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), core.float32)

    def mended_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, wide(a), wide(b), *rest)

    interpreter.InterpreterBuilder.create_dot = mended_dot
    interpreter._patch_lang_tensor = mended_tensor
    interpreter._patch_lang = patched_once
    interpreter._get_np_dtype = np_dtype
    core.tuple.__init__ = begin_tuple
    core.tuple.type = functools.cached_property(lambda self: core._type_for_tuple_values(self.values))
    core.tuple.type.__set_name__(core.tuple, "type")
