"""Names of items: a frozen sequence of strings that stays small for millions of items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steelyard._arrays import Index


@final
class Ids(Sequence[str]):
    """A frozen sequence of distinct strings, held as one Arrow array, or as numbers that are written out when read.

    Args:
        texts: a sequence of str, a numpy array of str or an Arrow array; `Ids.numbered` makes them from numbers.
        name: of the strings, in errors.
    """

    __slots__ = ("_numbers", "_texts")

    def __init__(self, texts: Sequence[str] | pa.Array | pa.ChunkedArray, name: str = "ids") -> None:
        self._numbers: Index | range | None = None
        self._texts: Any = _as_arrow(texts, name)
        _check_distinct(self._texts, name)

    @classmethod
    def numbered(cls, numbers: int | Index) -> Ids:
        """Return the strings of distinct `numbers`, or "0", "1", … of that many, each written out when it is read."""
        return cls._of(range(numbers) if isinstance(numbers, int) else numbers, None)

    @classmethod
    def distinct(cls, texts: pa.Array | pa.ChunkedArray) -> Ids:
        """Return the strings of an Arrow array known to hold none twice, as a dictionary does: that is not checked."""
        return cls._of(None, _as_arrow(texts, "ids"))

    @classmethod
    def _of(cls, numbers: Index | range | None, texts: Any) -> Ids:
        self = object.__new__(cls)
        self._numbers, self._texts = numbers, texts
        return self

    @property
    def arrow(self) -> Any:
        """The strings as an Arrow array of `large_string` (made here when they are numbers)."""
        if self._numbers is None:
            return self._texts
        numbers = np.arange(len(self)) if isinstance(self._numbers, range) else self._numbers
        return pa.array(numbers, pa.int64()).cast(pa.large_string())

    @property
    def numbers(self) -> range | Index | None:
        """The numbers behind the strings, None when the strings were given."""
        return self._numbers

    def take(self, index: Index) -> Ids:
        """Return the strings at `index`, whose entries must be distinct and in range."""
        if self._numbers is None:
            return self._of(None, self._texts.take(pa.array(index)))
        return self._of(index.copy() if isinstance(self._numbers, range) else self._numbers[index], None)

    def __len__(self) -> int:
        return len(self._texts if self._numbers is None else self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Ids: ...

    def __getitem__(self, index: int | slice) -> str | Ids:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        position = range(len(self))[index]
        return str(self._texts[position] if self._numbers is None else self._numbers[position])

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 65536):
            yield from self[start : start + 65536].arrow.to_pylist()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ids):
            return len(self) == len(other) and bool(self.arrow.equals(other.arrow))
        if isinstance(other, Sequence) and not isinstance(other, str):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [repr(text) for text in self[:3]] + ["…"] * (len(self) > 4) + [repr(text) for text in self[3:][-1:]]
        return f"Ids({', '.join(shown)})"


def several(texts: Iterable[str], name: str) -> tuple[str, ...]:
    """Return texts that are given as a sequence; one string, which is a sequence of its letters, is refused."""
    check_several(texts, name)
    return tuple(texts)


def check_several(texts: object, name: str) -> None:
    """Raise on a single string, given where a sequence of strings is needed."""
    if isinstance(texts, str | bytes):
        raise ValueError(f"{name} is the single string {texts!r:.60}: give one string for each")


def _as_arrow(texts: Any, name: str) -> Any:
    check_several(texts, name)
    if isinstance(texts, Ids):
        return texts.arrow
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if not isinstance(texts, (pa.Array, pa.ChunkedArray)):
        texts = list(texts)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"{name}[{i}] is {text!r}, a {type(text).__name__}: give a string")
        try:
            texts = pa.array(texts, pa.large_string())
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} holds {error.object!r:.60}, which is not Unicode: rename it") from None
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise ValueError(f"{name} is an Arrow array of {texts.type}: give strings")
    if texts.null_count:
        raise ValueError(f"{name}[{pc.index(texts.is_null(), True)}] is null: give a string")
    return texts.cast(pa.large_string())


def _check_distinct(texts: Any, name: str) -> None:
    if pc.count_distinct(texts).as_py() == len(texts):
        return
    codes = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    again = int(order[1:][codes[order[1:]] == codes[order[:-1]]].min())
    first = int(np.flatnonzero(codes == codes[again])[0])
    raise ValueError(f"{name}[{first}] and {name}[{again}] are both {str(texts[again])!r}: they must be distinct")
