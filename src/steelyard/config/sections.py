"""The sections of a configuration that are of no other room: [data], [objective] and [evaluate]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from steelyard._cache import OFF
from steelyard._schema import conform
from steelyard.data.opening import FORMATS
from steelyard.objective.parts import Part, Slot, completed, conflict
from steelyard.training.settings import choice, least

Calibration = Literal["auto", "none", "link", "temperature", "platt", "isotonic"]
Thresholds = Literal["f1", "half", "precision", "recall", "cost"]


@dataclass(frozen=True)
class DataSettings:
    """The section [data]; relative paths are relative to the folder in which the command is typed."""

    path: str = ""
    """A manifest (CSV, Parquet), .arff, .svm or .npz file, or the folder of a data set."""
    images: str = ""
    """The folder of a manifest's images; looked for if not given."""
    format: str = ""
    """What the data is: table, voc, multi_mnist, …; guessed if not given."""
    split: str = ""
    """The part to train on; by default the training part."""
    validation: float | str = "auto"
    """The share of items held out for validation, 0 for none; or another split, such as "val"; or a path. auto is
    none for small models, which are judged by folds, and a tenth for the training loop."""
    test: str = ""
    """A split or a path on which the finished model is tested."""
    size: int = 0
    """The side of images in pixels; 0 is the backbone's own."""
    cache: str = ""
    """A folder to keep decoded images and frozen features in. By default images are decoded in every epoch, and the
    features of frozen backbones are kept in the user's cache folder, where all runs share them; off: in the run."""
    on_bad_image: Literal["error", "skip"] = "error"
    """What to do about an image that is missing or cannot be decoded: stop, or leave it out."""
    year: int = 0
    """Of VOC and COCO; by default the last one that is there."""
    form: Literal["", "wide", "list", "long"] = ""
    """Of a manifest: a column for each label, all labels in one cell, or a row for each; guessed if not given."""
    id: str = ""
    """The column of a manifest that names the items; guessed if not given."""
    path_column: str = ""
    """The column of a manifest with the image files; guessed if not given."""
    labels: tuple[str, ...] = ()
    """The columns of a manifest that hold labels; guessed if not given."""
    value: str = ""
    """The column of a manifest with the value of the label; guessed if not given."""
    features: tuple[str, ...] = ()
    """The columns of a manifest that are the input; guessed if not given."""
    categories: tuple[str, ...] = ()
    """The columns of a manifest whose texts are an input, one feature for each different text; columns of texts among
    the features are taken so."""
    separator: str = ""
    """What separates labels in one cell of a manifest, "none" if a cell is one label; guessed if not given."""
    absent: Literal["", "negative", "unknown"] = ""
    """What a label is that a manifest does not mention; by default it depends on the form."""
    minus_one: Literal["", "unknown", "negative"] = ""
    """What -1 stands for; by default unknown."""
    names: str = ""
    """A file with the names of labels that the data gives as ids, CSV (id,name) or JSON."""
    split_column: str = ""
    """The column of a manifest that says which split an item is of; guessed if not given."""
    group: str = ""
    """The column of a manifest whose value items share that must stay in one fold, such as a patient or a shoot."""
    text: str = ""
    """The column of a manifest whose text is the input: TF-IDF of its words, or what model.backbone = "hf:FOLDER" makes
    of it; guessed where there is no other input."""
    embeddings: str = ""
    """An .npy file of embeddings, one row per item of the manifest in its order, or an .npz file of X and, if the order
    is another, ids: the input, whatever other columns there are."""
    audit: str = ""
    """A path to fully labelled items that decide among the candidates of recipe auto, where only positives are known
    of the training items."""
    corrections: str = ""
    """A file of answers of the review page, or a JSON export of Label Studio, merged into the training labels."""
    delimiter: str = ""
    """Of a CSV file; guessed if not given."""
    encoding: str = ""
    """Of a CSV file; by default utf-8."""

    def __post_init__(self) -> None:
        conform("data", self)
        if self.format:
            choice("data.format", self.format, FORMATS)
        if isinstance(self.validation, float):
            if not 0 <= self.validation < 1:
                raise ValueError(
                    f"data.validation is {self.validation}: give a share of at least 0 and below 1, a split or a path"
                )
        elif not self.validation:
            raise ValueError("data.validation is empty: give 0 for no validation, a share, a split or a path")
        least("data.size", self.size, 0)
        least("data.year", self.year, 0)

    def reader(self) -> dict[str, Any]:
        """Return what is said of how data is read, as arguments of `open_data` after its path, split left out."""
        names = ("images", "format", "year", "form", "id", "path_column", "labels", "value", "features")
        more = ("separator", "absent", "minus_one", "split_column", "group", "text", "embeddings", "categories")
        renamed = {"class_names": self.names} if self.names else {}
        said = {name: value for name in (*names, *more, "delimiter", "encoding") if (value := getattr(self, name))}
        if len(self.labels) == 1:
            said["labels"] = self.labels[0]
        return said | renamed

    @property
    def image_cache(self) -> str | None:
        """The folder of decoded images, None where they are decoded in every epoch."""
        return None if self.cache in ("", OFF) else self.cache


@dataclass(frozen=True)
class ObjectiveSettings:
    """The section [objective]: what is minimised, part by part; each part is a table, or the name of its kind."""

    loss: Part = field(default_factory=lambda: Part("bce"))
    """What one label costs."""
    unknown: Part = field(default_factory=lambda: Part("ignore"))
    """What to do with labels nobody annotated."""
    masking: Part = field(default_factory=lambda: Part("none"))
    """Whether labels are hidden at random until classes are balanced."""
    weighting: Part = field(default_factory=lambda: Part("none"))
    """How much each label counts."""
    label_pair: Part = field(default_factory=lambda: Part("none"))
    """Whether positives that do not outscore negatives of the same item cost extra."""
    reduction: Literal["mean", "item"] = "mean"
    """What the loss is divided by: the known labels of a batch, or its items (then a label costs what it costs)."""

    def __post_init__(self) -> None:
        choice("objective.reduction", self.reduction, ("mean", "item"))
        for slot, part in self.parts().items():
            object.__setattr__(self, slot, completed(slot, part))
        if (why := conflict(self.parts())) is not None:
            raise ValueError(why)

    def parts(self) -> dict[Slot, Part]:
        """Return the parts by name."""
        return {slot: getattr(self, slot) for slot in get_args(Slot)}


@dataclass(frozen=True)
class EvaluateSettings:
    """The section [evaluate]: how probabilities are read, and what is measured."""

    calibration: Calibration = "auto"
    """How logits become probabilities; auto takes what the loss and the validation items allow."""
    thresholds: Thresholds = "f1"
    """What the threshold of each label is for: the best F1, one half, a precision, a recall, or the least cost."""
    target: float = 0.9
    """The precision or recall that thresholds are for."""
    false_positive_cost: float = 1.0
    """Of the threshold goal "cost"."""
    false_negative_cost: float = 1.0
    """Of the threshold goal "cost"."""
    deploy_prior: str = ""
    """A file with the labels' priors where the model will be used, or "estimate"; by default those of training."""
    positives_per_item: float = 0.0
    """How many labels an item has on average, where only positives are known: probabilities are scaled from being
    annotated to being present; 0 where that is not known."""
    tail: int = 3
    """K of the scores over the K rarest labels."""
    head_at: int = 100
    """The positives from which on a label is of the head."""
    tail_below: int = 20
    """The positives below which a label is of the tail."""
    bins: int = 15
    """Of calibration errors and reliability diagrams."""
    bootstrap: int = 0
    """Resamples for confidence intervals; 0 for none."""
    single_label: Literal["auto", "yes", "no"] = "auto"
    """Whether accuracy by argmax is measured; auto does where every training item has one positive, none unknown."""
    batch_size: int = 256
    """Items at a time when nothing is trained."""

    def __post_init__(self) -> None:
        conform("evaluate", self)
        if not 0 < self.target <= 1:
            raise ValueError(f"evaluate.target is {self.target}: give a precision or recall above 0, at most 1")
        for name in ("false_positive_cost", "false_negative_cost", "bootstrap", "tail_below"):
            least(f"evaluate.{name}", getattr(self, name), 0)
        for name in ("tail", "bins", "batch_size"):
            least(f"evaluate.{name}", getattr(self, name), 1)
        if self.head_at < self.tail_below:
            raise ValueError(
                f"evaluate.head_at is {self.head_at}, below evaluate.tail_below, {self.tail_below}: raise it"
            )
        if self.thresholds == "cost" and not self.false_positive_cost + self.false_negative_cost > 0:
            raise ValueError("evaluate.false_positive_cost and evaluate.false_negative_cost are both 0: raise one")
