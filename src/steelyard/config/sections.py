"""The sections [data], [objective] and [evaluate] of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from steelyard._cache import OFF
from steelyard._schema import AT_LEAST_0, AT_LEAST_1, conform
from steelyard.data.files import check_choice
from steelyard.data.opening import FORMATS
from steelyard.data.tables.guess import OF_TABLES
from steelyard.objective.parts import Part, Slot, completed, conflict

Calibration = Literal["auto", "none", "link", "temperature", "platt", "isotonic"]
Thresholds = Literal["f1", "half", "precision", "recall", "cost"]


@dataclass(frozen=True)
class DataSettings:
    """The section [data]. Relative paths start from the folder in which the command is run."""

    path: str = ""
    """A manifest (CSV, Parquet), an .arff, .svm or .npz file, or the folder of a data set."""
    images: str = ""
    """Folder of a manifest's images; searched for near the manifest by default."""
    format: str = ""
    """Format of the data: table, voc, multi_mnist, …; guessed by default."""
    split: str = ""
    """Split to train on; the training split by default."""
    validation: float | str = "auto"
    """Share of items held out for validation (0 for none), another split such as "val", or a path. auto holds out a
    tenth for the training loop, and nothing for small models, which are compared by cross-validation."""
    test: str = ""
    """Split or path on which the finished model is tested."""
    size: int = 0
    """Side of the images in pixels; 0 takes the size the backbone was designed for."""
    cache: str = ""
    """Folder for decoded images and features of frozen backbones. By default images are decoded in every epoch, and
    features are kept in the user's cache folder, shared by all runs; off keeps them in the run."""
    on_bad_image: Literal["error", "skip"] = "error"
    """Response to an image that is missing or cannot be decoded: stop with an error, or skip it."""
    year: int = 0
    """Year of VOC or COCO; the latest one present by default."""
    form: Literal["", "wide", "list", "long"] = ""
    """Form of a manifest: one column per label, all labels of an item in one cell, or one row per item and label;
    guessed by default."""
    id: str = ""
    """Column that names the items of a manifest; guessed by default."""
    path_column: str = ""
    """Column of image files in a manifest; guessed by default."""
    labels: tuple[str, ...] = ()
    """Label columns of a manifest; guessed by default."""
    value: str = ""
    """Column of label values in a manifest in long form; guessed by default."""
    features: tuple[str, ...] = ()
    """Feature columns of a manifest; guessed by default."""
    categories: tuple[str, ...] = ()
    """Columns of a manifest to use as categories, one feature per distinct text; text columns listed as features are
    treated the same way."""
    separator: str = ""
    """Separator between labels in one cell of a manifest, or "none" if each cell is one label; guessed by default."""
    absent: Literal["", "negative", "unknown"] = ""
    """Meaning of a label that a manifest does not mention; the default depends on the form."""
    minus_one: Literal["", "unknown", "negative"] = ""
    """Meaning of -1; unknown by default."""
    names: str = ""
    """CSV (id,name) or JSON file with the names of labels that the data gives as ids."""
    split_column: str = ""
    """Column of a manifest that assigns items to splits; guessed by default."""
    group: str = ""
    """Column of a manifest whose items with equal values stay in one fold, such as a patient or a photo session."""
    text: str = ""
    """Text column of a manifest to use as input, as TF-IDF of its words or through the encoder of model.backbone =
    "hf:FOLDER"; guessed if there is no other input."""
    embeddings: str = ""
    """File of embeddings to use as input instead of any column: .npy with one row per item of the manifest, in its
    order, or .npz with X and, for another order, ids."""
    audit: str = ""
    """Path to fully labelled items by which recipe auto chooses among its candidates, if only positives are known in
    training."""
    corrections: str = ""
    """Answers from the review page, or a JSON export of Label Studio, to merge into the training labels."""
    delimiter: str = ""
    """Delimiter of a CSV file; guessed by default."""
    encoding: str = ""
    """Encoding of a CSV file; utf-8 by default."""

    def __post_init__(self) -> None:
        conform("data", self, {AT_LEAST_0: ("size", "year")})
        if self.format:
            check_choice(self.format, FORMATS, "data.format")
        if isinstance(self.validation, float):
            if not 0 <= self.validation < 1:
                raise ValueError(
                    f"data.validation is {self.validation}: give a share of at least 0 and below 1, a split or a path"
                )
        elif not self.validation:
            raise ValueError("data.validation is empty: give 0 for no validation, a share, a split or a path")

    def reader(self) -> dict[str, Any]:
        """Return the settings of how data is read, as arguments of `open_data` without path and split."""
        given = {name: value for name in ("format", "year", *OF_TABLES) if (value := getattr(self, name))}
        if len(self.labels) == 1:
            given["labels"] = self.labels[0]
        return given | ({"class_names": given.pop("names")} if self.names else {})

    @property
    def image_cache(self) -> str | None:
        """Folder of decoded images; None if they are decoded in every epoch."""
        return None if self.cache in ("", OFF) else self.cache


@dataclass(frozen=True)
class ObjectiveSettings:
    """The section [objective]: what training minimises. Each part is a table, or the name of its kind."""

    loss: Part = field(default_factory=lambda: Part("bce"))
    """Loss of a single label."""
    unknown: Part = field(default_factory=lambda: Part("ignore"))
    """Treatment of unknown labels."""
    masking: Part = field(default_factory=lambda: Part("none"))
    """Hides labels at random until classes are balanced."""
    weighting: Part = field(default_factory=lambda: Part("none"))
    """Weights of the labels."""
    label_pair: Part = field(default_factory=lambda: Part("none"))
    """Penalty for positives that do not score above the negatives of the same item."""
    reduction: Literal["mean", "item"] = "mean"
    """Denominator of the loss: the known labels of a batch, or its items (each label then counts the same in every
    batch)."""

    def __post_init__(self) -> None:
        conform("objective", self)
        for slot, part in self.parts().items():
            object.__setattr__(self, slot, completed(slot, part))
        if (why := conflict(self.parts())) is not None:
            raise ValueError(why)

    def parts(self) -> dict[Slot, Part]:
        """Return the parts by name."""
        return {slot: getattr(self, slot) for slot in get_args(Slot)}


@dataclass(frozen=True)
class EvaluateSettings:
    """The section [evaluate]: how logits become probabilities and decisions, and what is measured."""

    calibration: Calibration = "auto"
    """Conversion of logits to probabilities; auto takes what the loss and the validation items allow."""
    thresholds: Thresholds = "f1"
    """Goal of the threshold of each label: best F1, one half, a precision, a recall, or least cost."""
    target: float = 0.9
    """The precision or recall to reach, for thresholds with that goal."""
    false_positive_cost: float = 1.0
    """Cost of a false positive, for thresholds = "cost"."""
    false_negative_cost: float = 1.0
    """Cost of a false negative, for thresholds = "cost"."""
    deploy_prior: str = ""
    """File with the prior of each label where the model will be used, or "estimate"; the priors of the training set
    by default."""
    positives_per_item: float = 0.0
    """Mean number of labels per item, if only positives are known: probabilities of being annotated are scaled to
    probabilities of being present. 0 if not known."""
    tail: int = 3
    """K for scores over the K rarest labels."""
    head_at: int = 100
    """Positives from which a label counts as head."""
    tail_below: int = 20
    """Positives below which a label counts as tail."""
    bins: int = 15
    """Number of bins in calibration errors and reliability diagrams."""
    bootstrap: int = 0
    """Resamples for confidence intervals; 0 for none."""
    single_label: Literal["auto", "yes", "no"] = "auto"
    """Measure accuracy by argmax; auto does so if every training item has one positive and no unknown
    label."""
    batch_size: int = 256
    """Items per batch outside training."""

    def __post_init__(self) -> None:
        numbers = ("false_positive_cost", "false_negative_cost", "bootstrap", "tail_below")
        conform("evaluate", self, {AT_LEAST_0: numbers, AT_LEAST_1: ("tail", "bins", "batch_size")})
        if not 0 < self.target <= 1:
            raise ValueError(f"evaluate.target is {self.target}: give a precision or recall above 0, at most 1")
        if self.head_at < self.tail_below:
            raise ValueError(
                f"evaluate.head_at is {self.head_at}, below evaluate.tail_below, {self.tail_below}: raise it"
            )
        if self.thresholds == "cost" and not self.false_positive_cost + self.false_negative_cost > 0:
            raise ValueError("evaluate.false_positive_cost and evaluate.false_negative_cost are both 0: raise one")
