"""Recipes: each is sound data, trains, combines with others where they agree, and is what the papers say."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steelyard as sy
from steelyard.balance import ClassAware
from steelyard.config.advice import OTHERWISE, RULES, resolve_auto
from steelyard.config.build import make_objective
from steelyard.config.recipes import METHODS, RECIPES, SETUPS, settings
from steelyard.config.settings import Config, load_config
from steelyard.labels import Labels
from steelyard.objective import Objective

N, L = 16, 5


def holed() -> Labels:
    """Labels with holes, one of them never present, one never known."""
    values = np.random.default_rng(0).choice([1, 0, -1], (N, L), p=[0.4, 0.4, 0.2])
    values[:, 3] = np.minimum(values[:, 3], 0)
    values[:, 4] = -1
    return Labels(values)


def trained(objective: Objective, labels: Labels) -> torch.Tensor:
    """The gradient of one batch."""
    objective.start_epoch(1, 3)
    logits = torch.linspace(-2, 2, N * L).reshape(N, L).requires_grad_()
    objective(logits, torch.from_numpy(labels.values), index=torch.arange(N)).total.backward()
    assert logits.grad is not None
    return logits.grad


_REACH_UNKNOWN = ("an", "wan", "role", "epr", "pal", "coco-pal", "ll-r", "ll-ct", "ll-cp", "splc", "em", "em-apl", "gr")


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"teacher"}))  # which needs a file: test_partial_rules.py
def test_every_recipe_trains(name: str, tmp_path: Path):
    grad = trained(make_objective(load_config(recipe=name).objective, holed(), tmp_path, seed=0), holed())
    assert grad.isfinite().all()
    assert grad.abs().sum() > 0
    assert grad[:, 4].abs().sum() == 0 or name in _REACH_UNKNOWN


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.code])
def test_the_python_of_a_recipe_is_the_same_objective(name: str, tmp_path: Path):
    config, labels = load_config(recipe=name), holed()
    *before, last = RECIPES[name].code.split("\n")
    scope: dict[str, Any] = {"sy": sy, "labels": labels}
    exec("\n".join(before), scope)
    made = make_objective(config.objective, labels, tmp_path / "run", seed=0)
    assert torch.equal(trained(eval(last, scope), labels), trained(made, labels))
    kinds = {"shuffle": type(None), "class_aware": ClassAware}
    assert isinstance(scope.get("sampler"), kinds[config.train.sampler.kind])


def test_methods_set_objective_and_sampler_only_but_for_two_about_networks():
    assert set(METHODS["scratch"].settings) == {"model", "train"}
    assert set(METHODS["finetune"].settings) == {"optimizer", "train"}
    for name, recipe in METHODS.items():
        if name in ("finetune", "scratch"):
            continue
        assert set(recipe.settings) <= {"objective", "train"}, name
        assert set(recipe.settings.get("train", {})) <= {"sampler"} | ({"epochs"} if name == "ldam-drw" else set()), (
            name
        )
    assert settings("bce") == {}


def test_setups_set_everything_that_a_paper_says():
    for name, recipe in SETUPS.items():
        assert {"data", "model", "objective", "optimizer", "schedule", "train"} <= set(recipe.settings), name
        assert recipe.paper, name


def test_the_papers_figures():
    """Numbers of the papers, written out a second time."""
    db = load_config(recipe="voc-mlt-db")
    loss = db.objective.loss.arguments
    assert [loss[k] for k in ("alpha", "beta", "mu", "lam", "kappa", "gamma")] == [0.1, 10.0, 0.3, 5.0, 0.05, 2.0]
    assert (db.optimizer.kind, db.optimizer.lr, db.optimizer.weight_decay) == ("sgd", 0.02, 1e-4)
    assert (db.train.epochs, db.train.batch_size, db.schedule.milestones) == (8, 32, (5.0, 7.0))
    assert db.schedule.warmup_from == 1 / 3
    assert db.schedule.warmup_epochs * -(-775 // 4) * 20 / 32 == pytest.approx(500)  # iterations
    coco = load_config(recipe="coco-mlt-db")
    assert [coco.objective.loss.arguments[k] for k in ("mu", "lam", "as_released")] == [0.2, 2.0, True]
    assert coco.schedule.warmup_epochs * -(-1128 // 4) * 80 / 32 == pytest.approx(500)
    plm = load_config(recipe="multimnist-plm")
    assert (plm.train.epochs, plm.schedule.milestones, plm.schedule.warmup_epochs) == (90, (60.0, 80.0), 5.0)
    assert (plm.optimizer.lr, plm.optimizer.momentum, plm.objective.masking.arguments["rate"]) == (0.1, 0.9, 0.01)
    cifar = load_config(recipe="cifar10-lt-plm")
    assert (cifar.schedule.factor, cifar.objective.masking.arguments["rate"], cifar.train.epochs) == (0.01, 1.0, 200)
    large = load_config(recipe="coco-plm")
    assert (large.optimizer.lr, large.train.batch_size, large.objective.masking.arguments["clip"]) == (0.4, 200, (0, 1))
    rbce = load_config(recipe="r-bce").objective.loss.arguments
    assert (rbce["lam"], rbce["kappa"], rbce["gamma"]) == (1.0, 0.0, 0.0)
    assert load_config(recipe="pal").objective.unknown.arguments["feedback"] == "link"
    assert load_config(recipe="coco-pal").objective.unknown.arguments["feedback"] == "raw"


def test_recipes_combine_where_they_set_different_parts():
    both = load_config(recipe="plm+spa-lpr")
    assert [part.kind for part in both.objective.parts().values()] == ["spa", "ignore", "plm", "none", "on"]
    assert load_config(recipe="spa-lpr+plm") == both
    assert load_config(recipe="db+resample") == load_config(recipe="db")  # they agree
    assert load_config(recipe="focal+cb+undersample+role").train.sampler.per_class == 500


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("focal+asl", "recipe focal+asl: focal and asl both set objective.loss: leave one out"),
        ("db+undersample", "recipe db+undersample: db and undersample both set train.sampler: leave one out"),
        ("plm+voc-mlt-db", "recipe plm+voc-mlt-db: voc-mlt-db sets everything: use it alone"),
        ("auto+plm", "recipe auto+plm: auto stands for a whole objective: use it alone"),
        ("spa-lrp", "there is no recipe 'spa-lrp': did you mean spa-lpr?"),
        ("plm+fokal", "there is no recipe 'fokal': did you mean focal?"),
        ("xyzzy", f"there is no recipe 'xyzzy': choose one of auto, {', '.join(RECIPES)}"),
        ("", "there is no recipe '': choose one of auto, bce"),
    ],
)
def test_recipes_that_cannot_be(name: str, sentence: str):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        load_config(recipe=name)


def test_every_pair_of_methods_combines_or_is_refused_in_a_sentence():
    for pair in itertools.combinations(METHODS, 2):
        try:
            config = load_config(recipe="+".join(pair))
        except ValueError as refusal:
            assert "\n" not in str(refusal)  # noqa: PT017
            assert str(refusal).startswith(("recipe ", "objective."))  # noqa: PT017
        else:
            one, other = (load_config(recipe=name).as_dict() for name in pair)
            default = Config().as_dict()
            for slot, part in config.as_dict()["objective"].items():
                assert part in (one["objective"][slot], other["objective"][slot], default["objective"][slot])


def test_the_table_is_not_changed_by_reading_it():
    before = repr(RECIPES)
    settings("voc-mlt-db")["data"]["size"] = 1
    settings("db+plm")["objective"]["loss"] = None
    load_config(recipe="voc-mlt-db", sets=["train.sampler.kind=shuffle", "objective.loss.mu=0.9"])
    assert repr(RECIPES) == before


def test_auto_is_the_advice():
    values = np.random.default_rng(0).integers(0, 2, (50, 4))
    name, why = resolve_auto(Labels(values))
    assert name == "bce"
    assert "no rebalancing needed" in why
    assert resolve_auto(Labels(np.where(values == 0, -1, values)))[0] == "wan"
    with pytest.raises(ValueError, match="nothing to learn"):
        resolve_auto(Labels(np.zeros((4, 2))))
    assert load_config(recipe="auto") == Config()
    long_tailed = np.zeros((600, 3), np.int8)
    for c, n in enumerate((500, 100, 25)):
        long_tailed[:n, c] = 1
    assert resolve_auto(Labels(long_tailed))[0] == "plm"
    name, why = resolve_auto(Labels(long_tailed), elsewhere=True)
    assert name == "lpr"
    assert "ρ is 20" in why
    assert resolve_auto(Labels(values), elsewhere=True)[0] == "bce"
    config = load_config(recipe=f"{name}+scratch", overrides={"train": {"ema": 0.5}})
    assert (config.model.dropout, config.train.ema, config.train.augment.pad_crop) == (0.5, 0.5, 2)
    assert config.objective.label_pair.kind == "on"
    assert {rule.recipe for rule in RULES if rule.recipe} | {name for name, _ in OTHERWISE} <= set(METHODS)
