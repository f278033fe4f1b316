"""Encoders from columns to features: fitted to training items, saved with the run as JSON, reused for new items."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array, hstack

from steelyard._files import write_atomic
from steelyard._sealed import sealed, unsealed
from steelyard.data.columns.mixed import TEXTS, Column, Kind, MixedDataset
from steelyard.data.columns.sentences import Sentences
from steelyard.data.dataset import ArrayDataset
from steelyard.data.sparse import SparseRows

FILE = "inputs.json"
_FORMAT, _VERSION = "steelyard inputs", 1
MOST_TERMS = 20_000
"""Number of words, and of pairs of words, that are kept: the most frequent ones."""
MOST_PARTS = 60_000
"""Number of parts of words that are kept: the most frequent ones."""
PAIRS = 0.5
"""Weight of pairs of words beside words."""
_FEWEST_WITH_PART = 3
_MOST_WITH_PART = 0.02


class ColumnEncoder(Protocol):
    """Encoder of one column."""

    kind: ClassVar[str]
    takes: ClassVar[Kind]

    @property
    def width(self) -> int:
        """Number of features it makes."""

    def features(self, values: Any) -> Any:
        """Return features (N, width) of the values of a column, an array or sparse."""


@final
@dataclass(frozen=True)
class Numbers:
    """Numbers as they are."""

    width: int
    kind: ClassVar[str] = "number"
    takes: ClassVar[Kind] = "number"

    @classmethod
    def fitted(cls, values: Any) -> Numbers:
        """Return an encoder for as many numbers per item."""
        return cls(1 if values.ndim == 1 else values.shape[1])

    def features(self, values: Any) -> Any:
        """Return the numbers, (N, width)."""
        numbers = values.reshape(len(values), -1)
        if numbers.shape[1] != self.width and len(numbers):
            raise ValueError(
                f"it holds {numbers.shape[1]} numbers per item, but {self.width} in training: give as many"
            )
        return numbers


@final
@dataclass(frozen=True)
class Categories:
    """One feature per category, 1 where an item is of it; one not seen in training, or missing, has none."""

    values: tuple[str, ...]
    kind: ClassVar[str] = "category"
    takes: ClassVar[Kind] = "category"

    @classmethod
    def fitted(cls, values: Any) -> Categories:
        """Return the categories that occur, sorted."""
        return cls(tuple(sorted(cell for cell in values.unique().to_pylist() if cell is not None)))

    @property
    def width(self) -> int:
        """The number of categories."""
        return len(self.values)

    def features(self, values: Any) -> Any:
        """Return 0 and 1, (N, width)."""
        place = {name: j for j, name in enumerate(self.values)}
        numbers = np.zeros((len(values), self.width), np.float32)
        for i, cell in enumerate(values.to_pylist()):
            if cell in place:
                numbers[i, place[cell]] = 1
        return numbers


@final
@dataclass(frozen=True)
class TfIdf:
    """TF-IDF of one kind of terms, by scikit-learn: (1 + log count) · idf, of norm 1.

    terms: what is counted.
    idf: 1 + log((1 + N)/(1 + items with the term)), one per term.
    analyzer: "word", or "char_wb" for sequences of characters inside words.
    lengths: fewest and most words, or characters, of a term. The defaults are those of runs that kept neither.
    """

    terms: tuple[str, ...]
    idf: tuple[float, ...]
    analyzer: str = "word"
    lengths: tuple[int, int] = (1, 2)
    kind: ClassVar[str] = "tfidf"
    takes: ClassVar[Kind] = "text"

    @classmethod
    def fitted(cls, values: Any, analyzer: str, lengths: tuple[int, int], **limits: Any) -> TfIdf:
        """Count the terms of texts, within scikit-learn's limits of min_df, max_df and max_features."""
        vectoriser = _vectoriser(analyzer, lengths, **limits).fit([cell or "" for cell in values.to_pylist()])
        terms = map(str, vectoriser.get_feature_names_out())
        return cls(tuple(terms), tuple(map(float, vectoriser.idf_)), analyzer, lengths)

    @property
    def width(self) -> int:
        """The number of terms."""
        return len(self.terms)

    def features(self, values: Any) -> csr_array:
        """Return TF-IDF, sparse (N, width)."""
        vectoriser = _vectoriser(self.analyzer, self.lengths, vocabulary=list(self.terms))
        vectoriser.idf_ = np.array(self.idf)
        return csr_array(vectoriser.transform([cell or "" for cell in values.to_pylist()]), dtype=np.float32)


@final
@dataclass(frozen=True)
class TextTerms:
    """TF-IDF of words, pairs of words and parts of words side by side, of norm 1 together.

    blocks: TF-IDF of each kind of terms.
    weights: of each kind, one per block.
    """

    blocks: tuple[TfIdf, ...]
    weights: tuple[float, ...]
    kind: ClassVar[str] = "terms"
    takes: ClassVar[Kind] = "text"

    @classmethod
    def fitted(cls, values: Any) -> TextTerms:
        """Count the terms of texts: words of two items if there are any, else of one; pairs and parts if there are any.

        Kinds are counted apart, since frequent pairs would crowd out the rare words that name rare labels. Parts that
        are in many items are left out: they are most of the work and tell little.
        """
        n = len(values)
        words = _first_of(values, "word", (1, 1), MOST_TERMS, {"min_df": min(2, n)}, {"min_df": 1})
        if words is None:
            raise ValueError("it holds no words: give texts with words of at least two letters, or other features")
        often = max(_FEWEST_WITH_PART, int(_MOST_WITH_PART * n))
        pairs = _first_of(values, "word", (2, 2), MOST_TERMS, {"min_df": 2})
        parts = _first_of(values, "char_wb", (3, 5), MOST_PARTS, {"min_df": _FEWEST_WITH_PART, "max_df": often})
        kinds = ((words, 1.0), (pairs, PAIRS), (parts, 1.0))
        blocks, weights = zip(*((block, weight) for block, weight in kinds if block is not None), strict=True)
        return cls(blocks, weights)

    @classmethod
    def of_description(cls, content: dict[str, Any]) -> TextTerms:
        """Return what `asdict` described."""
        return cls(tuple(TfIdf(**_tuples(block)) for block in content["blocks"]), tuple(content["weights"]))

    @property
    def width(self) -> int:
        """The number of terms."""
        return sum(block.width for block in self.blocks)

    def features(self, values: Any) -> csr_array:
        """Return TF-IDF, sparse (N, width)."""
        parts = [weight * block.features(values) for block, weight in zip(self.blocks, self.weights, strict=True)]
        return SparseRows(hstack(parts, format="csr", dtype=np.float32)).unit().cells


def _first_of(values: Any, analyzer: str, lengths: tuple[int, int], most: int, *limits: dict[str, Any]) -> TfIdf | None:
    """Return TF-IDF within the first limits that leave a term, None where none do."""
    for one in limits:
        with suppress(ValueError):
            return TfIdf.fitted(values, analyzer, lengths, max_features=most, **one)
    return None


def _vectoriser(analyzer: str, lengths: tuple[int, int], **how: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=analyzer, ngram_range=lengths, sublinear_tf=True, dtype=np.float64, **how)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of JSON with tuples for lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


_KINDS: dict[str, Any] = {kind.kind: kind for kind in (Numbers, Categories, TfIdf, TextTerms)}
_DEFAULT: dict[Kind, Any] = {kind.takes: kind for kind in _KINDS.values()}


@final
class Encoder:
    """Features of items described by columns, side by side in the order of `columns`.

    columns: what encodes each, by name.
    """

    def __init__(self, columns: Mapping[str, ColumnEncoder]) -> None:
        self.columns = dict(columns)

    @classmethod
    def fitted(cls, data: MixedDataset, texts: ColumnEncoder | None = None) -> Encoder:
        """Return an encoder for such items; labels are not looked at.

        Args:
            data: the training items.
            texts: what encodes texts; by default TF-IDF of their terms.
        """
        encoders = {}
        for name, column in data.columns.items():
            try:
                own = texts if column.kind == "text" else None
                encoders[name] = own or _DEFAULT[column.kind].fitted(column.values)
            except ValueError as error:
                raise ValueError(f"column {name!r} of the inputs: {error}") from None
        return cls(encoders)

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(encoder.width for encoder in self.columns.values())

    @property
    def text(self) -> str | None:
        """The only column, where that is one of texts."""
        (name, encoder), *more = self.columns.items()
        return name if encoder.takes == "text" and not more else None

    def features(self, columns: Mapping[str, Column]) -> Any:
        """Return the features (N, width) of items, float32: sparse where a part is."""
        parts = []
        if self.text is not None and list(columns) == [TEXTS]:  # texts passed alone have no column name
            columns = {self.text: columns[TEXTS]}
        for name, encoder in self.columns.items():
            if name not in columns:
                raise ValueError(f"the inputs have no column {name!r}, which training had: add it")
            column = columns[name]
            if {column.kind, encoder.takes} == {"text", "category"}:
                column = column._replace(kind=encoder.takes)  # few items may look like the other
            if column.kind != encoder.takes:
                kinds = f"{_PLURAL[column.kind]}, but {_PLURAL[encoder.takes]} in training"
                raise ValueError(f"column {name!r} of the inputs holds {kinds}: give the same")
            try:
                parts.append(encoder.features(column.values))
            except ValueError as error:
                raise ValueError(f"column {name!r} of the inputs: {error}") from None
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts, 1, dtype=np.float32)
        return csr_array(hstack(parts, format="csr", dtype=np.float32))

    def features_of_names(self, names: Sequence[str]) -> csr_array | None:
        """Return the features (L, width) of labels' names read as texts: game::real-time is "game real time".

        None where no column is read term by term, or no name has a term that training texts have.
        """
        texts = pa.array([re.sub(r"[\W_]+", " ", name) for name in names])
        parts = [
            encoder.features(texts) if isinstance(encoder, TextTerms) else csr_array((len(names), encoder.width))
            for encoder in self.columns.values()
        ]
        cells = csr_array(hstack(parts, format="csr", dtype=np.float32))
        return cells if cells.nnz else None

    def encoded(self, data: MixedDataset) -> ArrayDataset:
        """Return items with features instead of columns."""
        return ArrayDataset(self.features(data.columns), data.labels, data.note, data.weights)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write it to a folder as plain JSON."""
        content = []
        for name, encoder in self.columns.items():
            kept = encoder.describe(Path(folder)) if isinstance(encoder, Sentences) else asdict(encoder)  # type: ignore[call-overload]
            content.append({"column": name, "kind": encoder.kind, **kept})
        write_atomic(Path(folder) / FILE, sealed({"columns": content}, _FORMAT, _VERSION))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Encoder | None:
        """Return the encoder of a folder, None where it has none."""
        path = Path(folder) / FILE
        if not path.is_file():
            return None
        try:
            content = unsealed(path.read_bytes(), _FORMAT, _VERSION)["columns"]
            return cls({entry.pop("column"): _loaded(entry, path.parent) for entry in content})
        except (OSError, json.JSONDecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is corrupt ({error}): restore it, or train again") from None


_PLURAL = {"number": "numbers", "category": "categories", "text": "texts"}


def _loaded(entry: dict[str, Any], run: Path) -> ColumnEncoder:
    if (name := entry.pop("kind")) == Sentences.kind:
        return Sentences.of_description(entry, run)
    if name == TextTerms.kind:
        return TextTerms.of_description(entry)
    encoder: ColumnEncoder = _KINDS[name](**_tuples(entry))
    return encoder
