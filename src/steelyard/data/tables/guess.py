"""The meaning of a manifest: its form and the role of each column, guessed unless given."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from steelyard.data.columns.mixed import is_prose
from steelyard.data.files import check_choice, listed
from steelyard.data.images import EXTENSIONS
from steelyard.data.located import folder_near, is_file
from steelyard.data.tables.columns import (
    FOLDS,
    IDS,
    LABELS,
    VALUES,
    Columns,
    about_types,
    family,
    is_category,
    is_numeric,
    looks_like_files,
    mostly_values,
    plain,
    repeats,
)
from steelyard.data.tables.manifest import Manifest, encode
from steelyard.data.tables.separators import are_lists, marks_join_labels, separator_of
from steelyard.labels.ids import several

ONE_LABEL = "none"
"""Value of `separator` for a column in which each cell is one label, whatever it holds."""
_BETWEEN = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}

OF_TABLES = (
    *("images", "form", "id", "path_column", "labels", "value", "features", "separator", "absent", "minus_one"),
    *("names", "delimiter", "encoding", "split_column", "group", "text", "embeddings", "categories"),
)
"""The arguments of `open_data` that say how a manifest is read."""
_FIELDS = {"path_column": "path", "split_column": "split"}  # as `Guess` calls them

Form = Literal["wide", "list", "long"]


@dataclass(frozen=True)
class Guess:
    """The layout of a manifest; `guess(source, given)` fills in the fields that are None.

    form: "wide", a column for each label; "list", all labels of an item in one cell; "long", a row for each label of
        an item.
    id: the column that names the items, None for their numbers.
    path: the column with the image file of an item within `images`.
    labels: the label columns (wide), or the column that holds label names (list, long).
    value: in long form, the column with the value of the label; without one every row is a present label.
    features: columns of numbers that are the input; by default, without images, all that have no other part.
    separator: in list form, the separator between labels in a cell; None, or "none", if each cell is one label.
    absent: what a label is that is not mentioned (wide: a blank cell), "negative" or "unknown"; by default negative in
        list form and in long form without values, else unknown.
    minus_one: meaning of −1 in a label column, "unknown" or "negative".
    names: in list and long form, the labels in their order; None takes those that occur, sorted.
    images: the folder of the images.
    split: the column that says which part an item belongs to, train, val or test; None if none does.
    group: the column whose value items share that must stay together in every split, such as a patient; never guessed.
    text: the column of texts that is the input, beside the features if there are any; guessed where there is no other
        input and its cells are sentences.
    categories: columns of texts that are an input, a feature for each different text; never guessed but from features
        that name such a column.
    embeddings: the file whose rows are the input, see `embeddings_of`; then no column is.
    unused: columns that play no part.
    unfound: the column of image files where none of them is found, so that there is no input.
    """

    form: Form | None = None
    id: str | None = None
    path: str | None = None
    labels: str | tuple[str, ...] | None = None
    value: str | None = None
    features: tuple[str, ...] | None = None
    separator: str | None = None
    absent: Literal["negative", "unknown"] | None = None
    minus_one: Literal["unknown", "negative"] = "unknown"
    names: tuple[str, ...] | None = None
    images: Path | None = None
    split: str | None = None
    group: str | None = None
    text: str | None = None
    embeddings: Path | None = None
    categories: tuple[str, ...] | None = None
    unused: tuple[str, ...] = ()
    unfound: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Guess:
        """Return what arguments of `table` or `open_data` say about a manifest."""
        fields = {field.name for field in dataclasses.fields(cls)}
        named = {_FIELDS.get(name, name): value for name, value in options.items() if value is not None}
        given = {name: value for name, value in named.items() if name in fields}
        for name, value in given.items():
            if name in ("images", "embeddings"):
                given[name] = Path(value)
            elif name in ("features", "names", "categories") or not isinstance(value, str):
                given[name] = several(value, name)
        return cls(**given)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `open_data` that say the same."""
        named = {name: getattr(self, _FIELDS.get(name, name), None) for name in OF_TABLES}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that `labels` names."""
        return () if self.labels is None else (self.labels,) if isinstance(self.labels, str) else self.labels

    @property
    def used(self) -> tuple[str, ...]:
        """Every column that plays a part, each once."""
        named = [self.id, self.path, self.value, self.split, self.group, self.text]
        named += [*self.label_columns, *(self.features or ()), *(self.categories or ())]
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def describe(self, source: Manifest) -> str:
        """Describe in one paragraph how the manifest is read and which options change that."""
        between = _BETWEEN.get(source.delimiter or "", repr(source.delimiter))
        kind = "Parquet" if source.is_parquet else f"{between}-separated text"
        says = [f"{source.path} is read as {kind} in {self.form} form"]
        if self.form == "wide":
            blank, minus = (("absent" if x == "negative" else "unknown") for x in (self.absent, self.minus_one))
            says.append(f"{_counted(self.label_columns, 'label column')}, where 1 is present, 0 absent")
            says.append(f"blank is {blank} and -1 {minus}")
        else:
            between = f" separated by {self.separator!r}" if self.separator else ""
            several = "one label per item" if self.separator == ONE_LABEL else f"the labels of an item{between}"
            each = "one label per row" if self.form == "long" else several
            says.append(f"column {self.labels!r} holds {each}")
            if self.form == "long":
                says.append("each row a present label" if self.value is None else f"its value is in {self.value!r}")
            says.append(f"a label not mentioned is {'absent' if self.absent == 'negative' else 'unknown'}")
        says.append("items are numbered" if self.id is None else f"items are named by column {self.id!r}")
        if self.embeddings is not None:
            says.append(f"the input is the rows of {self.embeddings}")
        elif self.images is not None:
            says.append(f"the images are the files of column {self.path!r} in {self.images}")
        elif self.text or self.features or self.categories:
            inputs = [f"the text of column {self.text!r}"] if self.text else []
            inputs += [_counted(self.features, "feature column")] if self.features else []
            inputs += [_counted(self.categories, "column") + " of categories"] if self.categories else []
            says.append(f"the input is {' and '.join(inputs)}")
        else:
            says.append("there is no input, only labels")
        if self.group:
            says.append(f"items with the same {self.group!r} stay together")
        if self.unused:
            says.append(f"not used: {_counted(self.unused, 'column')}")
        options = "--form, --id, --path, --labels, --value, --features, --text, --separator, --absent, --minus-one"
        change = f"To change any of it: {options}, --names, --images, --split-column, --group (in Python, arguments)."
        return f"{'; '.join(says)}. {change}{about_types(source, self.unused)}"


def guess(source: Manifest, given: Guess, near: bool = False) -> Guess:
    """Complete what is `given` about a manifest from the names of its columns and its first megabytes.

    near: where there is no input else, look for images in the folders beside the manifest.
    """
    _check(source, given)
    columns = Columns(source, given.used)
    for part in (given.id, given.path, given.value, given.split, given.group):
        if part is not None and pa.types.is_nested(kind := columns.cells[part].type):
            raise source.error(f"column {part!r} holds {kind}: give one with a text in each row")
    numbered = _look_again(columns, given)
    texts = () if given.text or given.images else _set_prose_aside(columns)
    split = columns.take(given.split or columns.split_column())
    path = columns.take(given.path or columns.path_column())
    id = columns.take(given.id or columns.id_column(path))
    item = path or id
    column, value, form = _form(columns, given, id or path)
    labels = _wide_labels(columns, given, numbered) if form == "wide" else column
    if not labels:
        shown = f"{listed(source.columns, 8):.300}"
        raise source.error(
            f"no label is found in its columns ({shown}): name the label columns with labels=, or give form="
        )
    inputs = _inputs(columns, given, item, form, texts, near)
    no_input = given.embeddings is None and not any(inputs)
    guessed = dataclasses.replace(
        given,
        form=form,
        id=id or path,
        path=None if inputs.images is None else item,
        labels=labels,
        value=value,
        separator=separator_of(columns, column, given.separator) if form == "list" and column else None,
        absent=given.absent or ("negative" if form != "wide" and value is None else "unknown"),
        split=split,
        unfound=path if no_input and path is not None and looks_like_files(columns.cells[path]) else None,
        **inputs._asdict(),
    )
    used = set(guessed.used)
    return dataclasses.replace(guessed, unused=tuple(c for c in source.columns if c not in used))


class _InputColumns(NamedTuple):
    """Parts of the input, named as in `Guess`."""

    images: Path | None
    text: str | None
    features: tuple[str, ...]
    categories: tuple[str, ...]


def _inputs(
    columns: Columns, given: Guess, item: str | None, form: Form, texts: Sequence[str], near: bool
) -> _InputColumns:
    """Return the input: images, else texts, else the columns of numbers; `texts` are the columns of sentences."""
    source, images, text = columns.source, given.images, given.text
    own = given.embeddings is None  # whether the input is in the manifest, or named by it
    named = tuple(name for name in given.features or () if is_category(columns.cells[name]))
    categories = (*(given.categories or ()), *named)
    chosen = bool(given.features or given.categories)
    if own and images is None and not chosen and item is not None and _beside(source, str(columns.cells[item][0])):
        images = source.path.parent
    if item is None and (images is not None or form == "long"):
        raise source.error("no column that names the items is found: name it with id= or path=")
    others = own and images is None and form != "long"
    if text is None and others and not chosen:
        text = next(iter(texts), None)
    if given.features is not None:
        features = tuple(name for name in given.features if name not in categories)
    else:
        flags = [name for name in columns.free("label") if is_numeric(columns.cells[name])]
        numbers = {*columns.free("number", "vector"), *flags} if others and text is None else ()
        features = tuple(name for name in source.columns if name in numbers)
    if near and own and images is None and not (features or text or categories) and item is not None:
        images = folder_near(source.path, encode(columns.cells[item])[1].to_pylist()[:20])
    return _InputColumns(images, text, features, categories)


def _check(source: Manifest, given: Guess) -> None:
    """Refuse arguments that contradict the file or each other."""
    for argument in ("id", "path", "value", "split", "group", "text"):
        if (name := getattr(given, argument)) is not None:
            source.check_column(name, "split_column" if argument == "split" else argument)
    named = {"labels": given.label_columns, "features": given.features or (), "categories": given.categories or ()}
    for argument, names in named.items():
        for name in names:
            source.check_column(name, argument)
        if len(set(names)) < len(names):
            raise ValueError(f"{argument} names column {Counter(names).most_common(1)[0][0]!r} twice: name it once")
    if both := set(given.label_columns) & {
        *named["features"],
        *named["categories"],
        given.id,
        given.path,
        given.value,
        given.split,
    }:
        raise ValueError(f"labels names column {both.pop()!r}, which has another role too: give it one role")
    if given.text and (given.images or given.text in (given.features or ())):
        raise ValueError(f"text names column {given.text!r}, but images or features too: give one kind of input")
    if given.embeddings and (
        also := [name for name in ("images", "text", "features", "categories") if getattr(given, name)]
    ):
        raise ValueError(f"embeddings is given, but {also[0]} too: give one kind of input")
    if (given.text or given.categories) and given.form == "long":
        noun = "text" if given.text else "categories"
        raise ValueError(f"{noun} is given, but in long form an item has several rows: write one row per item")
    check_choice(given.form, ("wide", "list", "long", None), "form")
    check_choice(given.absent, ("negative", "unknown", None), "absent")
    check_choice(given.minus_one, ("unknown", "negative"), "minus_one")
    wide = given.form == "wide" or isinstance(given.labels, tuple)
    if wide and (given.form or "wide") != "wide":
        raise ValueError(
            f"labels names {len(given.label_columns)} columns, but {given.form} form has one: give its name"
        )
    for argument, fits in (("value", "long"), ("separator", "list"), ("names", "")):
        if getattr(given, argument) and (wide or (fits and given.form not in (fits, None))):
            raise ValueError(f"{argument} is given, but {'wide' if wide else given.form} form has none: leave it out")


def _look_again(columns: Columns, given: Guess) -> set[str]:
    """Correct kinds of columns by their names; return the families of numbered columns."""
    for name, kind in columns.kinds.items():  # the number of a fold is neither a label nor an input
        if plain(name) in FOLDS and kind in ("number", "label") and name not in columns.taken:
            columns.kinds[name] = "other"
    numbered = {family(name) for name, kind in columns.kinds.items() if kind == "number"} - {""}
    if given.labels is None:  # then a column of label values with a few others among them is one with mistakes in it
        for name, kind in columns.kinds.items():
            ours = kind in ("text", "number") and plain(name) not in LABELS | IDS
            if ours and family(name) not in numbered and mostly_values(columns.cells[name]):
                columns.kinds[name] = "label"
    return numbered


def _set_prose_aside(columns: Columns) -> tuple[str, ...]:
    """Return the columns of sentences, the longest first; they hold neither ids nor labels, unless named so."""
    words = {}
    for name in columns.free("text"):
        cells = encode(columns.cells[name])[1].to_pylist()
        named = plain(name) in IDS | LABELS
        if not named and is_prose(columns.cells[name].to_pylist()) and not are_lists(cells):
            words[name] = sum(len(cell.split()) for cell in cells)
            columns.kinds[name] = "prose"
    return tuple(sorted(words, key=lambda name: -words[name]))


def _form(columns: Columns, given: Guess, id: str | None) -> tuple[str | None, str | None, Form]:
    """Return the column that holds the names of labels, the one that holds their values, and the form."""
    column = given.labels if isinstance(given.labels, str) and given.form != "wide" else None
    if given.labels is None and given.form != "wide":
        column = _names_column(columns, given)
    columns.take(column)
    value = given.value
    if value is None and column is not None and given.form != "list":
        value = _value_column(columns, given)
    if given.form is not None:
        form = given.form
    elif column is None:
        form = "wide"
    elif columns.kinds[column] == "list":
        form = "list"
    elif value is not None:
        form = "long"
    else:  # an id that occurs twice among lists of labels is a mistake, which reading them names
        several_rows = id is not None and repeats(columns.cells[id])
        joined = several_rows and marks_join_labels(encode(columns.cells[column])[1].to_pylist())
        form = "long" if several_rows and not joined else "list"
    return column, columns.take(value) if form == "long" else None, form


def _wide_labels(columns: Columns, given: Guess, numbered: set[str]) -> tuple[str, ...]:
    """Return the label columns of wide form, none where all of them are blank."""
    labels = given.label_columns or tuple(c for c in columns.free("label", "blank") if family(c) not in numbered)
    if not given.labels and all(columns.kinds[name] == "blank" for name in labels):
        return ()
    columns.taken.update(labels)
    return labels


def _names_column(columns: Columns, given: Guess) -> str | None:
    """Return the column that holds the names of labels, if there is one."""
    named = [name for name in columns.free("text", "list", "number") if plain(name) in LABELS]
    if named := named or columns.free("list"):
        return named[0]
    texts, flags = columns.free("text"), [name for name in columns.free("label", "blank") if plain(name) not in VALUES]
    return texts[0] if len(texts) == 1 and (given.form or given.value or not flags) else None


def _value_column(columns: Columns, given: Guess) -> str | None:
    """Return the column that holds the values of labels in long form, if there is one."""
    if named := [name for name in columns.free("label", "number") if plain(name) in VALUES]:
        return named[0]
    flags = columns.free("label") if given.form == "long" else []
    return flags[0] if len(flags) == 1 else None


def _beside(source: Manifest, cell: str) -> bool:
    """Return whether there is an image of this name beside the manifest."""
    name = cell.strip()
    return name.lower().endswith(EXTENSIONS) and is_file(str(source.path.parent / name))


def _counted(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({listed(names)})"
