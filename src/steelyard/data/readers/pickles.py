"""Pickles of plain data (numbers, strings, lists, dicts, arrays), read without running anything they name."""

from __future__ import annotations

import io
import math
import pickle
import re
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError, PathLike, damaged, read_bytes

_DTYPE = re.compile(r"[biuf][1248]")


def read_pickle(path: PathLike) -> Any:
    """Return the plain data pickled in `path`; strings of Python 2 come back as bytes.

    Only dicts, lists, tuples, strings, bytes, numbers and numpy arrays of numbers are admitted, and the arrays are
    rebuilt here from their bytes. Any other name in the file is refused before anything is called.
    """
    content = read_bytes(path)
    try:
        return _plain(_PlainUnpickler(content).load(), {})
    except DataError as error:
        raise DataError(f"{path} {error}") from None
    except Exception as error:  # whatever the bytes raise: the file is not what it should be
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise damaged(path, f"it is not a readable pickle ({reason:.80}), but truncated or corrupt") from None


class _PlainUnpickler(pickle._Unpickler):
    """The unpickler of Python; in that of C a file may number an object so high that its table fills the memory."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_bytearray8(self) -> None:
        """Read the bytes that are there, without reserving memory for as many as the file announces."""
        length = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        content = self.read(length)  # type: ignore[attr-defined]
        if len(content) != length:
            raise DataError("ends within an array: it is truncated, download it again")
        self.append(bytearray(content))  # type: ignore[attr-defined]

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def find_class(self, module: str, name: str) -> Any:
        admitted = _ADMITTED.get((module.replace("numpy._core", "numpy.core"), name))
        if admitted is None:
            shown = repr(f"{module}.{name}")[1:-1]
            raise DataError(f"names {shown:.80}, which is not plain data: do not trust it, download it from its owners")
        return admitted


class _Dtype:
    """Stands in for numpy.dtype: a kind and size of numbers, and later their byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)
        if not _DTYPE.fullmatch(self.code):
            raise DataError(f"holds an array of {self.code!r:.20}, not of numbers: download it from its owners")
        self.order: Literal["<", ">"] = "<"

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise DataError(f"holds an array of byte order {order!r:.20}: it is corrupt, download it again")
        self.order = ">" if order == ">" else "<"

    def real(self) -> np.dtype[Any]:
        return np.dtype(self.code).newbyteorder(self.order)


class _Array:
    """Stands in for an array being rebuilt."""

    def __init__(self, *_: Any) -> None:
        self.value: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.value = _from_bytes(raw, dtype, shape, "F" if fortran else "C")


class _FromBuffer:
    """Stands in for numpy's `_frombuffer`, which newer pickles of arrays name."""

    def __new__(cls, raw: Any, dtype: Any, shape: Any, order: Any) -> Any:
        array = _Array()
        array.value = _from_bytes(raw, dtype, shape, order)
        return array

    def __setstate__(self, state: Any) -> None:  # without it a pickle could set attributes of this class
        raise DataError("sets the state of something that has none: download it from its owners")


class _Latin1(_FromBuffer):
    """Stands in for `_codecs.encode`, with which protocol 2 writes bytes."""

    def __new__(cls, text: Any, encoding: Any = "latin1") -> Any:
        if encoding not in ("latin1", "latin-1"):
            raise DataError(f"encodes text as {encoding!r:.20}: download it from its owners")
        return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("_codecs", "encode"): _Latin1,
}


def _from_bytes(raw: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(dtype, _Dtype) or not isinstance(raw, (bytes, bytearray)) or order not in ("C", "F"):
        raise DataError("holds an array that numpy did not write: download it from its owners")
    real = dtype.real()
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes) or math.prod(sizes) * real.itemsize != len(raw):
        raise DataError(f"holds an array of shape {sizes} with {len(raw)} bytes: it is corrupt, download it again")
    return np.frombuffer(bytes(raw), real).reshape(sizes, order=order)


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Replace stand-ins by the rebuilt arrays; objects referred to twice are visited once."""
    if isinstance(value, _Array):
        if value.value is None:
            raise DataError("holds an array without content: it is corrupt, download it again")
        return value.value
    if isinstance(value, (_Dtype, type, set, frozenset)):
        raise DataError("holds a type or a set where plain data should be: download it from its owners")
    if not isinstance(value, (dict, list, tuple)):
        return value
    if id(value) not in done:
        done[id(value)] = None  # a list inside itself ends here
        if isinstance(value, dict):
            done[id(value)] = {_plain(key, done): _plain(item, done) for key, item in value.items()}
        else:
            done[id(value)] = type(value)(_plain(item, done) for item in value)
    return done[id(value)]
