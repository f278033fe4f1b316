"""A user's table on disk, CSV or Parquet: its columns as Arrow arrays, its mistakes in one line."""

from __future__ import annotations

import codecs
import contextlib
import csv
import difflib
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from steelyard.data.files import DataError, check_regular
from steelyard.data.tables.decimals import has_decimal_commas, with_points

BLANK = ("", "nan", "NaN", "NAN", "na", "NA", "n/a", "N/A", "null", "NULL", "Null", "none", "None", "NONE", "?")
"""Blank cells."""

NUMBER: Final = r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)"
"""A cell that Arrow reads as a number, in upper or lower case."""

_DELIMITERS = (",", "\t", ";", "|")
_OTHER_FILES = {b"PK\x03\x04": "an Excel or zip file", b"\x1f\x8b": "a gzip file"}
_BLOCK = 1 << 23  # bytes of CSV parsed at a time, and what is looked at to guess
_SMALL_BLOCK = 1 << 18  # of a stream, for Arrow reads up to 32 blocks ahead
_LONGEST_NAME = 400  # characters of a column's
MOST_NAMED: Final = 10
"""Mistakes that one sentence names."""
_TEXT = pa.dictionary(pa.int32(), pa.string())
_IS_NUMBER = re.compile(NUMBER, re.ASCII | re.IGNORECASE)
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_NO_NUMBER = re.compile(r"column #(\d+): (?:Row #(\d+): )?CSV conversion error to double: invalid value '(.*)'", re.S)


class Manifest:
    """A CSV file with a header, or a Parquet file, told apart by their first bytes.

    White space around a cell and empty lines are ignored. Mistakes are named by their line in a CSV file, or their row
    in a Parquet file. A column without a name is called "column 3" after its place.

    path: the file.
    delimiter: what separates the cells of a CSV file; by default that of `,` tab `;` `|` that divides the first rows
        into the most columns, equally many in each.
    encoding: of a CSV file, as Python names it.
    """

    def __init__(self, path: str | os.PathLike[str], delimiter: str | None = None, encoding: str = "utf-8") -> None:
        self.path = Path(path)
        self.encoding = encoding
        self._sample: dict[str, Any] = {}
        try:
            check_regular(self.path)
            with self.path.open("rb") as file:
                start = file.read(1 << 16)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}): give a CSV or Parquet file") from None
        if not start.strip(b"\xef\xbb\xbf \t\r\n"):
            raise DataError(f"{path} is empty: give a table with a header and one row per item")
        for magic, what in _OTHER_FILES.items():
            if start.startswith(magic):
                raise DataError(f"{path} is {what}: save the table as CSV or Parquet")
        self.is_parquet = start.startswith(b"PAR1")
        if not self.is_parquet and self.path.suffix.lower() in (".parquet", ".pq"):
            raise DataError(f"{path} is not a readable Parquet file (it does not begin as one): write it again")
        self.delimiter: str | None = None
        self._decimal = "."
        self._small_block = _SMALL_BLOCK  # grows until the longest row fits
        if self.is_parquet:
            self._guarded(lambda: str(self._parquet().schema_arrow))  # all of it can be read
            names = keys = list(self._parquet().schema_arrow.names)
        else:
            if encoding == "utf-8" and start[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise DataError(f"{path} is UTF-16: save it as UTF-8, or give encoding='utf-16'")
            names = self._header(start, delimiter)
            keys = [str(i) for i in range(len(names))]
        self.unnamed = {f"column {i + 1}" for i, name in enumerate(names) if not name.strip()}
        names = [name.strip() or f"column {i + 1}" for i, name in enumerate(names)]
        if long := next((i for i, name in enumerate(names, 1) if len(name) > _LONGEST_NAME), 0):
            length = len(names[long - 1])
            raise self.error(f"column {long} has a name of {length} characters: is row 1 a header? add one")
        name, times = Counter(names).most_common(1)[0] if names else ("", 0)
        if times == 0:
            raise DataError(f"{path} has no columns: give a table with one row per item")
        if times > 1:
            at = " and ".join(str(i + 1) for i, other in enumerate(names) if other == name)
            raise DataError(f"{path}: columns {at:.80} have the same name {name!r:.80}: give each its own name")
        self._keys = dict(zip(names, keys, strict=True))

    def error(self, fault: str) -> DataError:
        """Return the error about a fault in the file."""
        return DataError(f"{self.path}: {fault}")

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._keys)

    def types(self) -> dict[str, Any]:
        """Return the Arrow type of each column of a Parquet file; those of CSV are all text, and not listed."""
        if not self.is_parquet:
            return {}
        schema = self._parquet().schema_arrow
        return {name: schema.field(key).type for name, key in self._keys.items()}

    def check_column(self, name: str, argument: str) -> None:
        """Refuse the name of a column that is not there."""
        if name not in self._keys:
            near = difflib.get_close_matches(name, self.columns, 1) or self.columns[:8]
            hint = f"do you mean {near[0]!r}?" if len(near) == 1 else f"there are {', '.join(map(repr, near))}"
            raise DataError(f"{self.path}: there is no column {name!r}, given as {argument}: {hint}")

    def row(self, i: int) -> str:
        """Return the row of the file that holds item `i` of a column, not counting empty lines; see `places`."""
        return f"row {i + 1 if self.is_parquet else i + 2}"

    def place(self, i: int) -> str:
        """Return the position in the file of item `i` of a column; see `places`."""
        return self.places([i])[0]

    def places(self, rows: Sequence[int]) -> list[str]:
        """Return the positions in the file of items of a column: for CSV, the lines at which their rows begin.

        A CSV file is read through once more for that, as cells may hold line breaks.
        """
        lines: dict[int, int] = {}
        if not self.is_parquet and rows:
            expected, last = set(rows), max(rows)
            with contextlib.suppress(csv.Error, UnicodeDecodeError):
                for i, (line, _) in enumerate(itertools.islice(self._records(), last + 1)):
                    if i in expected:
                        lines[i] = line
        return [f"line {lines[i]}" if i in lines else self.row(i) for i in rows]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the cells of each row of a CSV file, and the line at which it begins; the header is left out."""
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        with self.path.open(encoding=encoding, newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter or ",")
            line, is_header = 1, True
            for cells in reader:
                if cells and not is_header:
                    yield line, cells
                is_header = is_header and not cells
                line = reader.line_num + 1

    def sample(self) -> dict[str, Any]:
        """Return the beginning of every column, as strings where the file is CSV; decimal commas become points."""
        if self._sample:
            return self._sample
        if self.is_parquet:
            batches = self._guarded(lambda: self._parquet().iter_batches(batch_size=1 << 16))
            batch = self._guarded(lambda: next(batches, None))
        else:
            batch = self._read_csv(self._kinds(self._keys, pa.string()), _first_block)
        if batch is None or batch.num_rows == 0:
            raise DataError(f"{self.path} has a header but no rows: add one for each item")
        self._sample = {name: batch.column(key) for name, key in self._keys.items()}
        if not self.is_parquet and self.delimiter != "," and has_decimal_commas(self._sample):
            self._decimal, self._sample = ",", with_points(self._sample)
        return self._sample

    def read(self, texts: Iterable[str] = (), numbers: Iterable[str] = ()) -> dict[str, Any]:
        """Return whole columns: `texts` dictionary-encoded where they are strings, `numbers` as float64 where CSV."""
        texts, numbers = list(texts), list(numbers)
        kinds = self._kinds(texts, _TEXT, numbers)
        if self.is_parquet:
            types = self.types()
            strings = [self._keys[name] for name in texts if pa.types.is_string(types[name])]
            table = self._guarded(lambda: self._parquet(strings).read(columns=list(kinds)))
        else:
            table = self._read_csv(kinds, pcsv.read_csv, threads=True)
        return {name: table.column(self._keys[name]) for name in (*texts, *numbers)}

    def count(self) -> int:
        """Count the rows; the whole of a CSV file is looked through, so that one that is corrupt is refused here."""
        if self.is_parquet:
            return int(self._parquet().metadata.num_rows)
        n, self._small_block = self._read_csv({"0": pa.string()}, _count_rows, block=_SMALL_BLOCK) or (0, _SMALL_BLOCK)
        return int(n)

    def stream(self, texts: Iterable[str] = (), numbers: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
        """Return columns some thousands of rows at a time: `texts` as strings, `numbers` as float64 where CSV.

        Of a CSV file only a few megabytes are held at a time; call `count` before, which finds out how many are needed.
        """
        texts, numbers = list(texts), list(numbers)
        kinds = self._kinds(texts, pa.string(), numbers)
        if self.is_parquet:
            batches = self._guarded(lambda: self._parquet().iter_batches(batch_size=1 << 14, columns=list(kinds)))
        else:
            batches = iter(self._read_csv(kinds, pcsv.open_csv, block=self._small_block))
        while (batch := self._guarded(lambda: next(batches, None), kinds)) is not None:
            block = {name: batch.column(self._keys[name]) for name in (*texts, *numbers)}
            yield {name: column.cast(pa.string()) if name in texts else column for name, column in block.items()}

    def _kinds(self, texts: Iterable[str], kind: Any, numbers: Iterable[str] = ()) -> dict[str, Any]:
        """Return the types with which columns of a CSV file are read, by their keys."""
        return {self._keys[name]: kind for name in texts} | {self._keys[name]: pa.float64() for name in numbers}

    def _parquet(self, strings: Sequence[str] = ()) -> Any:
        return self._guarded(lambda: pq.ParquetFile(self.path, read_dictionary=list(strings)))

    def _guarded(self, read: Callable[[], Any], kinds: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Call `read` on a file that may be damaged; `kinds`: how the columns of a CSV file are read."""
        try:
            return read()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if self.is_parquet:
                why = (str(error).splitlines() or [type(error).__name__])[0][:120]
                raise DataError(f"{self.path} is not a readable Parquet file ({why}): write it again") from None
            if isinstance(error, UnicodeDecodeError):
                raise self._encoding_error() from None
            if not isinstance(error, pa.ArrowInvalid):
                raise
            raise self._csv_error(str(error), _float_columns(kinds)) from None

    def _header(self, start: bytes, delimiter: str | None) -> list[str]:
        """Read the names of the columns; on the way, settle the delimiter and how many lines come before the rows."""
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(start)  # its end may be within a character
            self.delimiter = delimiter or _guess_delimiter(text, self.path)
            with self.path.open(encoding=encoding, newline="") as file:
                for n, names in enumerate(csv.reader(file, delimiter=self.delimiter), 1):
                    if names:
                        self._skip = n
                        return names
        except UnicodeDecodeError:
            raise self._encoding_error() from None
        except (LookupError, TypeError, csv.Error) as error:
            raise DataError(f"{self.path}: the header cannot be read ({error}): give delimiter= or encoding=") from None
        raise DataError(f"{self.path} is empty: give a table with a header and one row per item")

    def _read_csv(
        self, kinds: dict[str, Any], read: Callable[..., Any], threads: bool = False, block: int | None = None
    ) -> Any:
        """Call `read` with the file and how to read it; a mistake is looked for in one thread, where rows are counted.

        kinds: the types of the columns to read.
        block: bytes parsed at a time, and more where a row is longer.
        """
        block = block or _BLOCK
        try:
            return read(self.path, *self._csv_options(kinds, threads, block))
        except pa.ArrowInvalid as error:
            if "straddl" in str(error) and block > self.path.stat().st_size:
                return None  # a header without even the end of its line
            if "straddl" in str(error):
                return self._read_csv(kinds, read, threads, 8 * block)
            if threads:
                return self._read_csv(kinds, read, False, block)
            raise self._csv_error(str(error), _float_columns(kinds)) from None
        except UnicodeDecodeError:
            raise self._encoding_error() from None

    def _csv_options(self, kinds: dict[str, Any], threads: bool, block: int) -> tuple[Any, Any, Any]:
        return (
            pcsv.ReadOptions(
                use_threads=threads,
                block_size=block,
                column_names=[str(i) for i in range(len(self._keys))],
                skip_rows_after_names=self._skip,
                encoding="utf8" if self.encoding == "utf-8" else self.encoding,
            ),
            pcsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            pcsv.ConvertOptions(
                column_types=kinds, include_columns=list(kinds), null_values=list(BLANK), decimal_point=self._decimal
            ),
        )

    def _csv_error(self, message: str, numbers: Sequence[int] = ()) -> DataError:
        """One line for what Arrow found wrong with the file; `numbers` are the columns that must hold numbers."""
        if "UTF8" in message:
            return self._encoding_error()
        if mistake := _RAGGED.search(message):
            row, expected, got = mistake.groups()
            shown = self._named(self._ragged(), f"row {row} has {got} cells")
            remedy = "add or remove some, and put quotes around a cell that holds the delimiter"
            return self.error(f"{shown}, but the header has {expected}: {remedy}")
        if mistake := _NO_NUMBER.search(message):
            column, row, cell = mistake.groups()
            arrow = f"row {row}, column {self.columns[int(column)]!r} holds {cell!r:.60}"
            shown = self._named(self._no_numbers(numbers), arrow)
            which = "which are no numbers" if "; " in shown else "which is no number"
            return DataError(f"{self.path}: {shown}, {which}: correct it, or name the feature columns with features=")
        return DataError(f"{self.path} is no readable CSV file ({message.splitlines()[0]:.120}): save it as CSV again")

    def _ragged(self) -> Iterator[str]:
        for line, cells in self._records():
            if len(cells) != len(self._keys):
                yield f"line {line} has {len(cells)} cells"

    def _no_numbers(self, columns: Sequence[int]) -> Iterator[str]:
        for line, cells in self._records():
            for j in columns:
                cell = cells[j].strip() if j < len(cells) else ""
                if cell not in BLANK and not _IS_NUMBER.fullmatch(cell.replace(self._decimal, ".")):
                    yield f"line {line}, column {self.columns[j]!r} holds {cell!r:.60}"

    def _named(self, mistakes: Iterator[str], otherwise: str) -> str:
        """Join the first of some mistakes; `otherwise` where Arrow sees one that Python's reader does not."""
        try:
            first = list(itertools.islice(mistakes, MOST_NAMED))
            more = sum(1 for _ in mistakes)
        except (csv.Error, UnicodeDecodeError):
            return otherwise
        return "; ".join(first) + (f" and {more:,} more" if more else "") if first else otherwise

    def _encoding_error(self) -> DataError:
        remedy = "save it as UTF-8, or give its encoding, e.g. encoding='latin-1'"
        try:
            content = self.path.read_bytes()
            content.decode(self.encoding)
        except UnicodeDecodeError as error:
            line = 1 + content.count(b"\n", 0, error.start)
            byte = content[error.start]
            return DataError(f"{self.path}: line {line} is not {self.encoding} (byte 0x{byte:02x}): {remedy}")
        return DataError(f"{self.path} is not {self.encoding}: {remedy}")


def _float_columns(kinds: Mapping[str, Any]) -> list[int]:
    return [int(key) for key, kind in kinds.items() if kind == pa.float64()]


def _first_block(path: Path, *options: Any) -> Any:
    """Return the rows of the first block; the file is read only as far as its last row may reach."""
    with path.open("rb") as file:
        start = file.read(2 * options[0].block_size)
    with pcsv.open_csv(pa.BufferReader(start), *options) as reader:
        return next(iter(reader), None)


def _count_rows(path: Path, *options: Any) -> tuple[int, int]:
    """Return the number of rows of a file, and the size of the blocks in which they could be counted."""
    with pcsv.open_csv(path, *options) as reader:
        return sum(batch.num_rows for batch in reader), options[0].block_size


def _guess_delimiter(text: str, path: Path) -> str:
    if path.suffix.lower() in (".tsv", ".tab"):
        return "\t"

    def columns(delimiter: str) -> tuple[bool, int]:
        """Return whether the first rows are equally wide, and how wide; the last one may be cut off and is ignored."""
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows = [row for row in itertools.islice(reader, 50) if row]
        widths = [len(row) for row in (rows[:-1] or rows)]
        return len(set(widths)) == 1 and widths[0] > 1, widths[0] if widths else 0

    return max(_DELIMITERS, key=columns)


def encode(column: Any) -> tuple[NDArray[np.int64], Any]:
    """Return a column of texts as (codes, distinct texts in the order met); blank cells have the code −1.

    White space around a text is ignored.
    """
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column.cast(pa.large_string()))
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries()
        indices = pa.chunked_array([chunk.indices for chunk in column.chunks], column.type.index_type)
        texts = column.chunk(0).dictionary if column.num_chunks else pa.array([], pa.string())
    else:
        indices, texts = column.indices, column.dictionary
    codes = indices.fill_null(-1).to_numpy().astype(np.int64)
    trimmed = pc.utf8_trim_whitespace(texts)
    if trimmed.equals(texts):
        place = None
    else:
        merged = trimmed.dictionary_encode()
        texts, place = merged.dictionary, merged.indices.to_numpy().astype(np.int64)
    if (blank := pc.index(texts, "").as_py()) >= 0:
        place = np.arange(len(texts)) if place is None else place
        place = np.where(place == blank, -1, place - (place > blank))
        texts = pa.concat_arrays([texts[:blank], texts[blank + 1 :]])
    return codes if place is None else np.append(place, -1)[codes], texts.cast(pa.large_string())
