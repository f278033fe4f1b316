"""Open the items to train, validate and test on, as the section [data] names them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.balance.split import stratified_split
from steelyard.config.sections import DataSettings
from steelyard.data.columns.encoder import Encoder
from steelyard.data.columns.mixed import MixedDataset
from steelyard.data.columns.sentences import PREFIX, Sentences
from steelyard.data.corrections import Corrections, corrected
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.opening import Opened, existing, open_data
from steelyard.data.part import aligned, open_part
from steelyard.data.parts import part_named
from steelyard.data.subset import Labelled, Subset, source_of
from steelyard.data.tables.guess import OF_TABLES
from steelyard.labels import Labels
from steelyard.models import ModelSettings, image_size, input_of

_NOT_GUESSED = ("images", "names", "delimiter", "encoding", "embeddings")
GUESSED = tuple(name for name in OF_TABLES if name not in _NOT_GUESSED)
"""Settings of [data] that are guessed from a table where they are not given."""
PARTS = ("train", "validation", "test", "audit")
"""Names of the sets of items."""
MANY_LABELS = 20_000
"""Number of labels from which a linear model is trained one block of labels at a time, and items are held out at
random, since most labels have too few positives to be spread evenly."""
SHARE = 0.1
"""Share of items that the training loop holds out by default."""


class Datasets(NamedTuple):
    """Three sets of items with the same labels in the same order; validation and test may be missing."""

    train: Any
    validation: Any = None
    test: Any = None
    notes: tuple[str, ...] = ()
    """Guesses about the data, in sentences."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Guesses about a table as settings of [data], so that other files are read in the same way."""
    files: Mapping[str, str] = MappingProxyType({})
    """Settings of [data] that name files, as absolute paths."""
    encoder: Encoder | None = None
    """Encoder of columns to features, or None."""
    audit: Any = None
    """Fully labelled items that decide among the candidates of recipe auto, or None."""
    corrections: Corrections | None = None
    """Changes of the training labels by people's answers, None without such answers."""
    split_by: Labels | None = None
    """Training labels before corrections, by which a share is split off, so that an answer never moves an item."""


def open_datasets(settings: DataSettings, model: ModelSettings, seed: int, encoder: Encoder | None = None) -> Datasets:
    """Open the data of [data]; images are resized to `data.size`, or to the size the backbone was made for.

    `encoder` encodes the texts, as in the run it belongs to; None fits one to the training items.
    """
    if not settings.path:
        raise ValueError(
            "no data is given: name a table, file or folder with --data (path under [data] in a TOML file)"
        )
    opened = open_to_inspect(settings)
    share = SHARE if settings.validation == "auto" else settings.validation
    others = {"validation": share if isinstance(share, str) else "", "test": settings.test, "audit": settings.audit}
    parts = {"train": opened} | {part: _other(opened, name) for part, name in others.items() if name}
    guessed = {name: value for name in GUESSED if (value := opened.settings.get(name))}
    if isinstance(guessed.get("labels"), str):
        guessed["labels"] = (guessed["labels"],)
    files = {
        name: str(Path(value).absolute())
        for name in ("path", "images", "names", "validation", "test", "audit", "corrections", "embeddings")
        if isinstance(value := getattr(settings, name), str) and value and not _is_part(name, value, opened)
    }
    encoded, encoder = _encoded({name: part.data for name, part in parts.items()}, model.backbone, encoder)
    sized: dict[str, Any] = {name: _sized(part, settings, model) for name, part in encoded.items()}
    notes = tuple(part.note for part in parts.values() if part.note)
    opened_parts = Datasets(**sized, notes=notes, settings=guessed, files=files, encoder=encoder)
    return split_off(_with_corrections(opened_parts, settings.corrections), share, seed)


def _encoded(
    parts: Mapping[str, Any], backbone: str, encoder: Encoder | None = None
) -> tuple[dict[str, Any], Encoder | None]:
    """Return the parts with encoded columns, and the encoder; other data is returned as it is."""
    train, texts = parts["train"], backbone.startswith(PREFIX)
    columns = train.columns if isinstance(train, MixedDataset) else {}
    if texts and all(column.kind != "text" for column in columns.values()):
        raise ValueError(
            f"model.backbone is {backbone}, which takes texts, but there are none: name the column, data.text"
        )
    if not isinstance(train, MixedDataset):
        return dict(parts), None
    encoder = encoder or Encoder.fitted(train, Sentences.of(backbone) if texts else None)
    return {name: encoder.encoded(part) for name, part in parts.items()}, encoder


def open_to_inspect(settings: DataSettings) -> Opened:
    """Open the first part that [data] names, without resizing its images."""
    how = {"split": settings.split or None, "on_bad_image": settings.on_bad_image, **settings.reader()}
    return existing(open_data(settings.path, **how))


def given_datasets(datasets: Datasets, settings: DataSettings, model: ModelSettings, seed: int) -> Datasets:
    """Return data sets that were given in Python with one image size and the same labels, as training needs them.

    Images that have a size keep it unless `data.size` is set.
    """
    share = SHARE if settings.validation == "auto" else settings.validation
    if isinstance(share, str) and datasets.validation is None:
        raise ValueError(
            f"data.validation is {settings.validation!r}, but data is not a path: give the items themselves, or a share"
        )
    given = {name: part for name in PARTS if (part := getattr(datasets, name)) is not None}
    encoded, encoder = _encoded(given, model.backbone)
    datasets = datasets._replace(encoder=encoder)
    sized = {name: _sized(part, settings, model, keeps=True) for name, part in encoded.items()}
    for name, part in sized.items():
        if len(part) == 0:
            raise ValueError(f"the {name} data holds no items: give some, or leave it out")
        if input_of(part) != input_of(sized["train"]):
            given_form, form = (
                f"{i.kind} of {' × '.join(map(str, i.shape))}" for i in map(input_of, (part, sized["train"]))
            )
            raise ValueError(
                f"the inputs of the {name} data are {given_form}, but those of training {form}: give the same"
            )
    names = datasets.train.labels.names
    alike = datasets._replace(**{name: _like(part, names) for name, part in sized.items()})
    return split_off(_with_corrections(alike, settings.corrections), share, seed)


def _with_corrections(datasets: Datasets, file: str) -> Datasets:
    """Return the data sets with the answers in a file merged into the training labels; "" for no file."""
    if not file:
        return datasets
    train = datasets.train
    data = source_of(train)
    if not isinstance(data, ArrayDataset | ImageDataset):
        raise ValueError(f"the labels of a {type(data).__name__} cannot be corrected: correct them in its files")
    changed = copy.copy(data)
    changed.labels, report = corrected(data.labels, file)
    return datasets._replace(
        train=Subset(changed, train.index) if isinstance(train, Subset) else changed,
        notes=(*datasets.notes, *report.sentences),
        corrections=report,
        split_by=train.labels,
    )


def _like(data: Any, names: tuple[str, ...]) -> Any:
    """Return the data with exactly these labels in this order; a label that training lacks is refused."""
    if data.labels.names == names:
        return data
    if isinstance(data, Subset):
        return Subset(_like(data.data, names), data.index)
    if not isinstance(data, ArrayDataset | ImageDataset):
        raise ValueError(
            f"the {type(data).__name__} does not have the labels of training in their order: give a data set that does"
        )
    ordered = copy.copy(data)
    ordered.labels = aligned(data.labels, names)
    return ordered


def split_off(datasets: Datasets, share: float | str, seed: int) -> Datasets:
    """Hold out a share of the training items for validation, labels spread evenly, unless there are such items."""
    if isinstance(share, str) or share == 0 or datasets.validation is not None:
        return datasets
    if len(datasets.train) < 2:
        raise ValueError(f"data.validation is {share}, but there is only one item to train on: give more items")
    by = datasets.train.labels if datasets.split_by is None else datasets.split_by
    rest, held = _shared_out(by, share, seed)
    if len(rest) == 0 or len(held) == 0:
        raise ValueError(
            f"data.validation is {share}, which leaves {len(rest)} items to train on and {len(held)} to validate on: "
            "give another share"
        )
    return datasets._replace(train=Subset(datasets.train, rest), validation=Subset(datasets.train, held))


def _shared_out(labels: Labels, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the items to keep and to hold out; with very many labels they are drawn at random."""
    if labels.n_labels < MANY_LABELS or labels.item_groups is not None:
        return stratified_split(labels, share, seed)
    order = np.random.default_rng(seed).permutation(labels.n_items)
    n_held = max(1, round(share * labels.n_items))
    return np.sort(order[n_held:]), np.sort(order[:n_held])


def paths_of(data: Any) -> list[str] | None:
    """Return the image file of each item, None where items have none."""
    return data.paths if isinstance(source_of(data), ImageDataset) else None


def _other(opened: Opened, name: str) -> Opened:
    """Open another part, the split or the path `name`, with its labels in the order of the first."""
    is_part = _is_part("test", name, opened)
    return existing(open_part(opened, split=name) if is_part else open_part(opened, path=name))


def _is_part(setting: str, name: str, opened: Opened) -> bool:
    """Return whether a setting names a split rather than a file."""
    if setting not in ("validation", "test"):
        return False
    return part_named(name, opened.parts) is not None or not Path(name).exists()


def _sized(data: Labelled, settings: DataSettings, model: ModelSettings, keeps: bool = False) -> Labelled:
    """Return the data with images of one size; with `keeps`, images that have a size keep it unless one is set."""
    inside = source_of(data)
    if isinstance(inside, ImageDataset):
        if keeps and inside.size is not None and not settings.size:
            return data
        resized = inside.resized(settings.size or image_size(model), settings.image_cache)
        return Subset(resized, data.index) if isinstance(data, Subset) else resized
    if isinstance(inside, ArrayDataset) and inside.inputs.shape[-1] == 0:
        raise ValueError(
            f"{settings.path or 'the data'} has labels, but no inputs: name the folder of its images, data.images, or "
            "its feature columns, data.features"
        )
    if settings.size and isinstance(inside, ArrayDataset) and inside.inputs.shape[-1] != settings.size:
        raise ValueError(
            f"data.size is {settings.size}, but the inputs are arrays of shape {inside.inputs.shape[1:]}: leave it out"
        )
    return data
