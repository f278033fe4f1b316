"""Recipes as data: what each method of the papers, and each of their set-ups, sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from steelyard._schema import closest
from steelyard.objective.parts import Part


class Recipe(NamedTuple):
    """Settings under a name."""

    what: str
    """What it trains, in a phrase."""
    settings: Mapping[str, Any]
    """Nested, in the shape of the TOML file. That of a method: of [objective] and [train.sampler] only; but `finetune`
    and `scratch` are about networks of images, and `ldam-drw` counts its epochs."""
    paper: str = ""
    """Where it is from, and what is chosen here where that is silent."""
    data: str = ""
    """Of a whole set-up: what to train it on."""
    expected: str = ""
    """Of a whole set-up: the score to expect, where the paper gives one."""

    @property
    def whole(self) -> bool:
        """Whether it sets everything, for one data set."""
        return bool(self.data)


_PLM = "Partial Label Masking (PLM)"
_DB = "Distribution-Balanced Loss (Wu et al. 2020)"
_PAL = "partially annotated labels (PAL)"
_SPA = "SPA + LPR, calibrated multi-label classification"

_CLASS_AWARE = {"train": {"sampler": {"kind": "class_aware"}}}


def _objective(**parts: Part) -> dict[str, Any]:
    return {"objective": parts}


def _balanced(**arguments: float) -> dict[str, Any]:
    return _objective(loss=Part("distribution_balanced", arguments)) | _CLASS_AWARE


_DB_FOCAL = Recipe(
    "distribution-balanced focal loss on re-sampled items",
    _balanced(gamma=2.0),
    f"{_DB}: its best row, γ 2; μ .2, λ 2 are those of COCO-MLT (VOC-MLT: .3, 5)",
)

METHODS = {
    "bce": Recipe("binary cross-entropy over the known labels", {}),
    "bce-ls": Recipe(
        "cross-entropy with label smoothing",
        _objective(loss=Part("bce", {"smoothing": 0.1})),
        f"a baseline of {_PAL}; .1 is chosen here",
    ),
    "focal": Recipe("focal loss", _objective(loss=Part("focal", {"gamma": 2.0})), "Lin et al. 2017, γ 2"),
    "asl": Recipe("asymmetric loss", _objective(loss=Part("asymmetric")), "Ben-Baruch et al. 2021: γ₋ 4, γ₊ 0, m .05"),
    "spa": Recipe("strictly proper asymmetric loss", _objective(loss=Part("spa")), _SPA),
    "spa-lpr": Recipe(
        "strictly proper asymmetric loss with label-pair regularisation",
        _objective(loss=Part("spa"), label_pair=Part("on", {"weight": 0.1})),
        f"{_SPA}; the weight is silent there, .1 is chosen here",
    ),
    "lpr": Recipe(
        "label-pair regularisation, on top of any loss with a link",
        _objective(label_pair=Part("on", {"weight": 0.1})),
        f"{_SPA}, Table 4",
    ),
    "two-way": Recipe("two-way loss: ranks, without probabilities", _objective(loss=Part("two_way")), "Kobayashi 2023"),
    "ldam": Recipe(
        "label-distribution-aware margins", _objective(loss=Part("ldam")), "Cao et al. 2019, a sigmoid a label"
    ),
    "ldam-drw": Recipe(
        "label-distribution-aware margins, then class-balanced weights for the last fifth of 30 epochs",
        _objective(loss=Part("ldam"), weighting=Part("class_balanced", {"start": 25})) | {"train": {"epochs": 30}},
        "Cao et al. 2019: weights from epoch 160 of 200; for single-label data set objective.loss.softmax",
    ),
    "plm": Recipe("cross-entropy with partial label masking", _objective(masking=Part("plm")), _PLM),
    "rw": Recipe(
        "weights by the inverse root of frequency",
        _objective(weighting=Part("inverse_frequency")),
        f"a baseline of the {_DB}",
    ),
    "cb": Recipe(
        "weights by the inverse effective number of a class",
        _objective(weighting=Part("class_balanced")),
        "Cui et al. 2019, β .9999; a baseline of PLM",
    ),
    "cb-focal": Recipe(
        "focal loss, items weighed by the mean effective number of their classes",
        _objective(
            loss=Part("focal", {"gamma": 2.0}),
            weighting=Part("class_balanced", {"beta": 0.9, "mode": "mean_effective"}),
        ),
        f"a baseline of the {_DB}: β .9 COCO-MLT, .99 VOC-MLT",
    ),
    "nt-bce": Recipe("negative-tolerant cross-entropy", _objective(loss=Part("negative_tolerant")), _DB),
    "r-bce": Recipe("re-balanced cross-entropy on re-sampled items", _balanced(lam=1.0, kappa=0.0), _DB),
    "r-bce-focal": Recipe("re-balanced focal loss on re-sampled items", _balanced(lam=1.0, kappa=0.0, gamma=2.0), _DB),
    "db": _DB_FOCAL,
    "db-focal": _DB_FOCAL,
    "db-bce": Recipe("distribution-balanced loss without its focal factor, on re-sampled items", _balanced(), _DB),
    "resample": Recipe("class-aware sampling", _CLASS_AWARE, f"RS, a baseline of the {_DB}"),
    "undersample": Recipe(
        "at most 500 items of every class an epoch",
        {"train": {"sampler": {"kind": "undersample", "per_class": 500}}},
        f"a baseline of {_PLM}: 500 MultiMNIST, 1000 COCO",
    ),
    "an": Recipe("unknown labels as negatives", _objective(unknown=Part("negative")), f"AN, a baseline of {_PAL}"),
    "wan": Recipe(
        "unknown labels as negatives, and every negative of weight 1/(L−1)",
        _objective(unknown=Part("wan")),
        f"WAN, a baseline of {_PAL}",
    ),
    "role": Recipe("online estimates of unknown labels", _objective(unknown=Part("role")), "Cole et al. 2021"),
    "epr": Recipe(
        "known labels, and the expected number of positives of an item",
        _objective(unknown=Part("epr")),
        "Cole et al. 2021",
    ),
    "pal": Recipe(
        "partially annotated labels: known labels, and pseudo-labels for some of the unknown ones",
        _objective(unknown=Part("annotation", {"feedback": "link"})),
        f"{_PAL}, with the corrected probability fed back (the paper's own feedback is raw)",
    ),
    "finetune": Recipe(
        "a pretrained backbone at a tenth of the head's rate, on crops of at least .64 of an image",
        {"optimizer": {"backbone_lr": 0.1}, "train": {"augment": {"resized_crop": 0.64}}},
        "none: chosen on held-out items of two sets of photographs; crops are the Distribution-Balanced paper's",
    ),
    "scratch": Recipe(
        "dropout of .5, averaged weights and shifts by up to 2 pixels, for a network of small images without a past",
        {"model": {"dropout": 0.5}, "train": {"ema": 0.999, "augment": {"pad_crop": 2}}},
        "none: ingredients of steelyard reproduce plm-beyond that suit other images too",
    ),
}
"""The recipes that combine with any data and model, and by "+" with each other."""

_SGD = {"kind": "sgd", "momentum": 0.9}
_AS_IT_IS = {"calibration": "none", "thresholds": "half"}
"""PLM's tables read σ(z) at one half."""

_TRAIN_VAL = {"split": "train", "validation": 0.0, "test": "val"}
_RESNET50_256 = {"backbone": "timm:resnet50", "head": "bottleneck", "width": 256, "dropout": 0.5}


_WARPS = {"rotate": 15.0, "scale": 0.15, "shear": 0.2, "elastic": 1.5, "warp": 0.5}


def _beyond(train: Mapping[str, Any]) -> dict[str, Any]:
    """What both set-ups beyond PLM's paper share."""
    return {
        "model": {"backbone": "resnet12", "dropout": 0.5},
        "optimizer": {**_SGD, "lr": 0.1, "weight_decay": 5e-4},
        "schedule": {"kind": "cosine", "warmup_epochs": 3},
        "train": {"batch_size": 128, "ema": 0.999, "keep": "last", **train},
    }


_RELEASED = (
    "with the shift as released, mirroring, crops of at least .8 of a side, and batch normalisations that keep their "
    "statistics; the changed colours, the first stage that is not trained and the clipping released with them are not"
)


def _mlt(mu: float, lam: float, n_draws: int) -> dict[str, Any]:
    """The Distribution-Balanced paper's set-up, of `n_draws` items an epoch."""
    batch = 32
    constants = {"alpha": 0.1, "beta": 10.0, "mu": mu, "lam": lam, "kappa": 0.05, "gamma": 2.0, "as_released": True}
    return {
        "data": {"size": 224, "validation": 0.0},
        "model": {**_RESNET50_256, "keep_statistics": True},
        "objective": {"loss": Part("distribution_balanced", constants)},
        "optimizer": {**_SGD, "lr": 0.02, "weight_decay": 1e-4},
        "schedule": {
            "kind": "multistep",
            "milestones": [5, 7],
            "factor": 0.1,
            "warmup_epochs": 500 * batch / n_draws,
            "warmup_from": 1 / 3,
        },
        "train": {
            "epochs": 8,
            "batch_size": batch,
            "sampler": {"kind": "class_aware"},
            "augment": {"flip": 0.5, "resized_crop": 0.64},
        },
    }


AS_PAPERS: dict[str, Any] = {
    "data": {"validation": 0.1},
    "model": {"bias": "zero", "frozen": False},
    "schedule": {"warmup_epochs": 0.0},
    "train": {"learner": "loop", "epochs": 30, "batch_size": 128, "monitor": "map", "patience": 0},
}
"""What lies below every set-up of a paper, in place of what is automatic for users' own data."""

SETUPS = {
    "multimnist-plm": Recipe(
        "PLM on imbalanced MultiMNIST, ResNet-12",
        {
            "data": {"format": "multi_mnist", "split": "train", "validation": 0.0, "test": "test"},
            "model": {"backbone": "resnet12"},
            "objective": {"reduction": "item", "loss": Part("bce"), "masking": Part("plm", {"rate": 0.01, "bins": 10})},
            "optimizer": {**_SGD, "lr": 0.1, "weight_decay": 5e-4},
            "schedule": {"kind": "multistep", "milestones": [60, 80], "factor": 0.1, "warmup_epochs": 5},
            "train": {"epochs": 90, "batch_size": 128},
            "evaluate": {**_AS_IT_IS, "tail": 3},
        },
        f"{_PLM}, Table 1; weight decay is silent there, 5e-4 is chosen here",
        "the folder that holds MNIST/raw/",
        "F1 3.4 above cross-entropy's 80.35, and 8.5 above its 65.73 on the three rarest",
    ),
    "multimnist-beyond": Recipe(
        "cross-entropy and label pairs on imbalanced MultiMNIST, read for the label frequencies of the test pictures",
        {
            "data": {"format": "multi_mnist", "split": "train", "validation": 0.0, "test": "test"},
            **_beyond({"epochs": 90, "augment": {"pad_crop": 2, **_WARPS}}),
            "objective": {"reduction": "item", "loss": Part("bce"), "label_pair": Part("on", {"weight": 0.1})},
            "evaluate": {"thresholds": "half", "deploy_prior": "estimate", "tail": 3},
        },
        "none: chosen on training digits, see steelyard reproduce plm-beyond",
        "the folder that holds MNIST/raw/",
    ),
    "multimnist-open": Recipe(
        "the digits of imbalanced MultiMNIST, drawn evenly by class and paired, shifted and warped anew at every step",
        {
            "data": {"format": "multi_mnist", "split": "digits", "validation": "pairs", "test": "test"},
            **_beyond(
                {
                    "epochs": 160,
                    "validate_every": 160,
                    "sampler": {"kind": "class_aware"},
                    "augment": {"pad_crop": 6, "overlay": 1.0, **_WARPS},
                }
            ),
            "objective": {"reduction": "item", "loss": Part("bce")},
            "evaluate": {"calibration": "temperature", "thresholds": "half", "deploy_prior": "estimate", "tail": 3},
        },
        "none: chosen on training digits, see steelyard reproduce plm-beyond",
        "the folder that holds MNIST/raw/",
    ),
    "cifar10-lt-plm": Recipe(
        "PLM on long-tailed CIFAR-10, ResNet-32",
        {
            "data": {"split": "train", "validation": 0.0, "test": "test"},
            "model": {"backbone": "resnet32"},
            "objective": {"reduction": "item", "loss": Part("bce"), "masking": Part("plm", {"rate": 1.0, "bins": 10})},
            "optimizer": {**_SGD, "lr": 0.1, "weight_decay": 2e-4},
            "schedule": {"kind": "multistep", "milestones": [160, 180], "factor": 0.01, "warmup_epochs": 5},
            "train": {"epochs": 200, "batch_size": 128, "augment": {"flip": 0.5, "pad_crop": 4}},
            "evaluate": {**_AS_IT_IS, "tail": 5},
        },
        f"{_PLM}, Tables 3 and 4; λ is .01 on CIFAR-100",
        "CIFAR-10 thinned by steelyard.data.exponential_long_tail, as .npz with X_train, Y_train, X_test, Y_test",
    ),
    "coco-plm": Recipe(
        "PLM on COCO 2014, ResNet-50",
        {
            "data": {"format": "coco", "year": 2014, **_TRAIN_VAL, "size": 224},
            "model": {"backbone": "timm:resnet50"},
            "objective": {
                "reduction": "item",
                "loss": Part("bce"),
                "masking": Part("plm", {"rate": 0.01, "bins": 10, "clip": (0.0, 1.0)}),
            },
            "optimizer": {**_SGD, "lr": 0.4, "weight_decay": 5e-4},
            "schedule": {"kind": "multistep", "milestones": [30, 60, 80], "factor": 0.1, "warmup_epochs": 5},
            "train": {"epochs": 90, "batch_size": 200, "augment": {"flip": 0.5}},
            "evaluate": _AS_IT_IS,
        },
        f"{_PLM}, Table 2; weight decay, size, mirroring and ImageNet weights are silent there and chosen here",
        "the folder that holds annotations/ and the images of COCO 2014",
    ),
    "voc-mlt-db": Recipe(
        "DB-Focal on VOC-MLT, ResNet-50",
        _mlt(mu=0.3, lam=5.0, n_draws=20 * 194),
        f"{_DB}, Table 1, {_RELEASED}",
        "a manifest of VOC-MLT's 1,142 published images, and VOC 2007 test as data.test",
        "mAP 78.94 (head 73.22, medium 84.18, tail 79.30)",
    ),
    "coco-mlt-db": Recipe(
        "DB-Focal on COCO-MLT, ResNet-50",
        _mlt(mu=0.2, lam=2.0, n_draws=80 * 282),
        f"{_DB}, Table 1, {_RELEASED}",
        "a manifest of COCO-MLT's 1,909 published images, and COCO 2017 val as data.test",
        "mAP 53.55 (head 51.13, medium 57.05, tail 51.06)",
    ),
    "coco-pal": Recipe(
        "partially annotated labels on COCO 2014, ResNet-50",
        {
            "data": {"format": "coco", "year": 2014, **_TRAIN_VAL, "size": 448},
            "model": {"backbone": "timm:resnet50"},
            "objective": {
                "loss": Part("bce"),
                "unknown": Part(
                    "annotation", {"gamma": 0.05, "m": 3.0, "q": 0.3, "schedule": "exp", "feedback": "raw"}
                ),
            },
            "optimizer": {"kind": "adamw", "lr": 1e-4, "weight_decay": 1e-4},
            "schedule": {"kind": "cosine", "warmup_epochs": 1},
            "train": {"epochs": 30, "batch_size": 64, "augment": {"flip": 0.5}},
        },
        f"{_PAL}, Tables III to VI; optimizer, rate, epochs, batch and q are silent there and chosen here",
        "the folder that holds annotations/ and the images of COCO 2014; labels thinned by steelyard.data.keep_labels",
    ),
    "voc2012-spa": Recipe(
        "SPA + LPR on VOC 2012, ECA-ResNet50-T",
        {
            "data": {"format": "voc", "year": 2012, **_TRAIN_VAL, "size": 224},
            "model": {"backbone": "timm:ecaresnet50t"},
            "objective": {"loss": Part("spa"), "label_pair": Part("on", {"weight": 1.0})},
            "optimizer": {**_SGD, "lr": 0.02, "weight_decay": 1e-4},
            "schedule": {"kind": "cosine", "warmup_epochs": 1},
            "train": {"epochs": 30, "batch_size": 256, "augment": {"flip": 0.5}},
            "evaluate": {"calibration": "link"},
        },
        f"{_SPA}, Table 3; rate, schedule, epochs, mirroring and the weight of LPR are silent there and chosen here; "
        "its other network is timm:vit_base_patch32_224",
        "the folder that holds VOCdevkit/VOC2012",
    ),
}
"""The recipes that set everything, for one data set of a paper, on top of `AS_PAPERS`."""

RECIPES = METHODS | SETUPS
"""All recipes by name; "auto" is the one that `steelyard.config.advice` chooses."""


def command(name: str) -> str:
    """Return what to type to train a recipe."""
    return f"steelyard train --data {'FOLDER' if RECIPES[name].whole else 'DATA'} --recipe {name} --out RUN"


def settings(name: str) -> dict[str, Any]:
    """Return the settings of a recipe, or of several methods joined by "+" that set different parts."""
    if name in RECIPES:
        return deepcopy(dict(RECIPES[name].settings))
    joined: dict[str, Any] = {}
    setters: dict[tuple[str, str], str] = {}
    for method in name.split("+"):
        if method not in METHODS:
            raise ValueError(_refusal(method, name))
        for (section, part), value in _parts(METHODS[method].settings):
            if setters.setdefault((section, part), method) != method and joined[section][part] != value:
                raise ValueError(
                    f"recipe {name}: {setters[section, part]} and {method} both set {section}.{part}: leave one out"
                )
            joined.setdefault(section, {})[part] = value
    return joined


def _parts(content: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    for section, parts in content.items():
        for part, value in parts.items():
            yield (section, part), value


def _refusal(method: str, name: str) -> str:
    if method in SETUPS:
        return f"recipe {name}: {method} sets everything: use it alone, and change parts by --set"
    if method == "auto":
        return f"recipe {name}: auto stands for a whole objective: use it alone"
    meant = closest(method, [*RECIPES, "auto"])
    hint = f"did you mean {meant}?" if meant else f"choose one of auto, {', '.join(RECIPES)}"
    return f"there is no recipe {method!r}: {hint}"
