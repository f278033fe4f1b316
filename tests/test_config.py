"""Configurations: what is written is read back equal, layers in their order, and every mistake in one sentence."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from steelyard._schema import checked, describe, fields_of
from steelyard.config import toml
from steelyard.config.layers import tables
from steelyard.config.settings import (
    Config,
    DataSettings,
    EvaluateSettings,
    ObjectiveSettings,
    dump_config,
    load_config,
)
from steelyard.data.opening import FORMATS, open_data
from steelyard.objective.parts import KINDS, Part, Slot, arguments, default_kind

ODD = ['"', "\\", "'''", '"""', "a\nb", "\r\n", "\t\x00\x7f\x1b", "# no", "été 🦆", "= [x]", "\u2028\ufeff", "true"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(ODD)
SHARE = st.floats(0, 1, exclude_max=True)


def values(wanted: Any) -> st.SearchStrategy[Any]:
    """Values of a type."""
    if get_origin(wanted) is Literal:
        return st.sampled_from(get_args(wanted))
    if get_origin(wanted) is tuple:
        members = get_args(wanted)
        return (
            st.lists(values(members[0]), max_size=3).map(tuple) if ... in members else st.tuples(*map(values, members))
        )
    if get_args(wanted):
        return st.one_of(
            [values(member) for member in get_args(wanted) if member in (bool, int, float, str) or get_origin(member)]
        )
    return {bool: st.booleans(), int: st.integers(1, 1000), float: SHARE | st.just(1e-300), str: TEXT}[wanted]


@st.composite
def parts(draw: st.DrawFn, slot: Slot) -> Part:
    """A part of any kind; arguments its constructor refuses are left at their defaults."""
    kind = draw(st.sampled_from(sorted(KINDS[slot])))
    chosen: dict[str, Any] = {}
    for name, setting in arguments(slot, kind).items():
        trial = chosen | {name: draw(values(setting.type))}
        try:
            ObjectiveSettings(**{slot: Part(kind, trial)})
        except ValueError:
            continue
        chosen = trial
    return Part(kind, chosen)


@st.composite
def sections(draw: st.DrawFn, cls: Any) -> Any:
    """A section with every field drawn, made consistent where fields depend on each other."""
    drawn: dict[str, Any] = {}
    for name, setting in fields_of(cls).items():
        inside = dataclasses.is_dataclass(setting.type)
        drawn[name] = draw(sections(setting.type) if inside else values(setting.type))
    if cls is DataSettings:
        drawn |= {"format": draw(st.sampled_from(["", *FORMATS])), "validation": draw(SHARE | TEXT.filter(bool))}
    if "backbone" in drawn:
        drawn |= {"backbone": draw(st.sampled_from(["auto", "mlp", "timm:résnet50\n"])), "embeddings": ""}
        drawn["reachability"] = draw(st.floats(1e-6, 1e6))
        may_freeze = drawn["head"] != "places" and not drawn["mirror"]
        drawn["frozen"] = draw(st.sampled_from(["auto", False, *[True] * may_freeze]))
    if "nesterov" in drawn:
        drawn["nesterov"] = drawn["nesterov"] and drawn["momentum"] > 0
    if "milestones" in drawn:
        steps = sorted(drawn["milestones"]) if drawn["kind"] == "multistep" else []
        drawn["milestones"] = tuple(steps)
    if cls is EvaluateSettings:
        drawn |= {"head_at": drawn["tail_below"] + 1, "target": 0.5, "false_positive_cost": 0.25, "calibration": "auto"}
    return cls(**drawn)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Any configuration."""
    made = {name: draw(sections(s.type)) for name, s in fields_of(Config).items() if s.type is not ObjectiveSettings}
    objective = {slot: draw(parts(slot)) for slot in get_args(Slot)}
    try:
        return Config(objective=ObjectiveSettings(**objective), **made)
    except ValueError:  # parts that do not go together
        return Config(objective=ObjectiveSettings(loss=Part("spa"), masking=objective["masking"]), **made)


@effort(max_examples=30, suppress_health_check=list(HealthCheck))
@given(configs())
def test_what_is_written_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, config: Config):
    file = tmp_path_factory.mktemp("config") / "config.toml"
    file.write_bytes(dump_config(config).encode())
    again = load_config(file)
    assert again == config
    assert dump_config(again) == dump_config(config)
    assert _types(again.as_dict()) == _types(config.as_dict())
    assert Config().with_overrides(config.as_dict()) == config


def _types(tree: Any) -> Any:
    return {k: _types(v) for k, v in tree.items()} if isinstance(tree, dict) else type(tree)


@given(TEXT | SHARE | st.integers() | st.booleans() | st.lists(TEXT) | st.lists(st.floats(allow_nan=False)))
def test_values_survive_the_writer(value: Any):
    assert tomllib.loads(f"value = {toml.write_value(value)}")["value"] == value


def test_every_key_is_written_with_a_comment_above_it():
    for recipe in (None, "plm+pal+lpr+cb", "db"):
        config = load_config(recipe=recipe)
        lines = dump_config(config).split("\n")
        keys = [i for i, line in enumerate(lines) if line and not line.startswith(("#", "["))]
        assert all(lines[i - 1].startswith("# ") for i in keys)
        assert len(keys) == len(list(_leaves(config.as_dict())))
        assert max(map(len, lines)) <= 120


def _leaves(tree: dict[str, Any]) -> Iterator[Any]:
    for value in tree.values():
        yield from _leaves(value) if isinstance(value, dict) else [value]


def test_half_characters_are_refused():
    config = Config(data=DataSettings(path="a\udcff.csv"))
    with pytest.raises(ValueError, match="which TOML cannot hold"):
        dump_config(config)


def test_settings_are_frozen_and_can_be_copied():
    config = load_config(recipe="voc-mlt-db")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train = Config().train  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    assert config != Config()


# ---- layers


def test_each_layer_overrules_the_ones_before(tmp_path: Path):
    file = tmp_path / "run.toml"
    lines = ["[train]", "epochs = 7", "batch_size = 16", "[objective]", 'loss = "focal"', "masking.rate = 0.5"]
    file.write_text("\n".join(lines))
    config = load_config(
        file, "multimnist-plm", ["train.batch_size=8"], {"train": {"seed": 4, "out": None}, "data": {}}
    )
    assert (config.train.epochs, config.train.batch_size, config.train.seed, config.train.out) == (7, 8, 4, "")
    assert config.model.backbone == "resnet12"
    assert config.objective.loss == ObjectiveSettings(loss=Part("focal")).loss
    assert (config.objective.masking.kind, config.objective.masking.arguments["rate"]) == ("plm", 0.5)


def test_a_new_kind_starts_from_its_own_defaults():
    config = load_config(recipe="db", sets=["objective.loss=focal"])
    assert config.objective.loss.arguments == {"gamma": 2.0, "scale": 1.0}
    kept = load_config(recipe="db", sets=["objective.loss.kind=distribution_balanced", "objective.loss.mu=0.3"])
    assert (kept.objective.loss.arguments["gamma"], kept.objective.loss.arguments["mu"]) == (2.0, 0.3)


@pytest.mark.parametrize(
    ("sets", "key", "value"),
    [
        (["train.epochs=3"], "train.epochs", 3),
        (["optimizer.lr=1"], "optimizer.lr", 1.0),
        (["optimizer.lr=1e-4"], "optimizer.lr", 1e-4),
        (["optimizer.betas=[0.5, 0]"], "optimizer.betas", (0.5, 0.0)),
        (["data.path=photos/my labels.csv"], "data.path", "photos/my labels.csv"),
        (['data.path="quoted # text"'], "data.path", "quoted # text"),
        (["data.path=a#b"], "data.path", "a#b"),
        (["data.path=1 # x"], "data.path", "1 # x"),
        (["data.path=a=b"], "data.path", "a=b"),
        (["data.split=2007"], "data.split", "2007"),
        (["data.split=true"], "data.split", "true"),
        (["data.separator=;"], "data.separator", ";"),
        (["data.separator= "], "data.separator", " "),
        (["data.delimiter=\t"], "data.delimiter", "\t"),
        (["data.separator= ; "], "data.separator", ";"),
        (["data.delimiter=,"], "data.delimiter", ","),
        (["data.path=C:\\new\\table.csv"], "data.path", "C:\\new\\table.csv"),
        (["data.path="], "data.path", ""),
        (["data.validation=val"], "data.validation", "val"),
        (["data.validation=0"], "data.validation", 0.0),
        (["data.validation=.2"], "data.validation", 0.2),
        (["data.path=.2"], "data.path", ".2"),
        (["optimizer.lr=1.e-3"], "optimizer.lr", 0.001),
        (['data.labels=["cat", "dog"]'], "data.labels", ("cat", "dog")),
        (["model.frozen=true"], "model.frozen", True),
        ([" train . epochs = 5 "], "train.epochs", 5),
        (["train.epochs=3", "train.epochs=4"], "train.epochs", 4),
        (["train.sampler=class_aware"], "train.sampler.kind", "class_aware"),
        (["schedule=constant"], "schedule.kind", "constant"),
        (['objective.loss={kind="focal", gamma=1}'], "objective.loss.gamma", 1.0),
        (["objective.loss=focal", "objective.loss.gamma=1"], "objective.loss.gamma", 1.0),
        (["objective.loss.gamma=1", "objective.loss=focal"], "objective.loss.gamma", 1.0),
        (["objective.loss.gamma=1", "objective.loss.kind=focal"], "objective.loss.gamma", 1.0),
        (['objective.loss="focal"'], "objective.loss.kind", "focal"),
        (["objective.masking=plm", "objective.masking.clip=[0, 1]"], "objective.masking.clip", (0.0, 1.0)),
        (["objective.unknown=annotation", "objective.unknown.q=[0.1, 0.5]"], "objective.unknown.q", (0.1, 0.5)),
    ],
)
def test_what_is_typed_after_set(sets: list[str], key: str, value: Any):
    found: Any = load_config(sets=sets).as_dict()
    for name in key.split("."):
        found = found[name]
    assert found == value
    assert type(found) is type(value)


def test_python_values_are_taken_as_they_come():
    config = Config().with_overrides(
        {
            "data": {"path": Path("a/b.csv"), "labels": ["x"], "year": np.int64(2012)},
            "optimizer": {"lr": np.float32(0.5), "betas": [0, np.float64(0.5)]},
            "model": {"frozen": np.bool_(True)},
            "objective": {"loss": Part("focal", {"gamma": 1}), "masking": "plm"},
            "train": {"sampler": {"kind": "undersample"}},
            "evaluate": EvaluateSettings(tail=2),
        }
    )
    assert config.data.path == str(Path("a/b.csv"))
    assert (config.data.labels, config.data.year, config.optimizer.lr) == (("x",), 2012, 0.5)
    assert config.optimizer.betas == (0.0, 0.5)
    assert config.objective.loss.arguments == {"gamma": 1.0, "scale": 1.0}
    assert (config.train.sampler.per_class, config.evaluate.tail) == (500, 2)
    assert type(config.model.frozen) is bool
    assert config.with_overrides({}) == config


# ---- mistakes


def refusal(tmp_path: Path, text: str | bytes, **more: Any) -> str:
    file = tmp_path / "my run.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError) as caught:
        load_config(file, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(file), "FILE")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[optimizer]\nlearning_rate = 1", "no setting optimizer.learning_rate: choose one of kind, lr"),
        ("[optimizer]\nweight_dcay = 1", "no setting optimizer.weight_dcay: did you mean optimizer.weight_decay?"),
        ("[train]\nlr = 1", "no setting train.lr: did you mean optimizer.lr?"),
        ("epochs = 1", "no setting epochs: did you mean train.epochs?"),
        ("[optimiser]\nlr = 1", "no setting optimiser: did you mean optimizer?"),
        ("[train.sampler]\nvisit = 1", "no setting train.sampler.visit: did you mean train.sampler.visits?"),
        ("data = 'a.csv'", "data is 'a.csv': it is a section of settings, such as data.path"),
        ("[optimizer]\nlr = 'x'", "optimizer.lr is 'x': it must be a number"),
        ("[optimizer]\nlr = true", "optimizer.lr is True: it must be a number"),
        ("[optimizer]\nlr = nan", "optimizer.lr is nan: it must be a number"),
        ("[train]\nepochs = 1.0", "train.epochs is 1.0: it must be a whole number"),
        ("[train]\nepochs = 1979-05-27", "train.epochs is datetime.date(1979, 5, 27): it must be a whole number"),
        ("[model]\nfrozen = 1", "model.frozen is 1: it must be true or false"),
        ("[optimizer]\nbetas = [1]", "optimizer.betas is [1]: it must be a list of 2 numbers"),
        ("[data]\nlabels = ['a', 1]", "data.labels is ['a', 1]: it must be a list of texts"),
        ("[data]\npath.x = 1", "data.path is a table: it must be text"),
        ("[schedule]\nkind = 'cosin'", "schedule.kind is 'cosin': choose one of constant, multistep, cosine; did you"),
        ("[objective]\nloss = 'bec'", "objective.loss.kind is 'bec': choose one of bce, focal"),
        ("[objective]\nloss = 3", "objective.loss is 3: it is a section of settings, such as objective.loss.kind"),
        (
            "[objective.loss]\ngamma = 3",
            "objective.loss.gamma is given, but objective.loss is 'bce', which has no such",
        ),
        ("[objective.loss]\nkind = 'focal'\ngamma = -3", "objective.loss.gamma is -3.0: it must be at least 0"),
        ("[objective.loss]\nkind = ['focal']", "objective.loss.kind is ['focal']: it must be one of bce"),
        ("[optimizer]\nlr = -1", "optimizer.lr is -1.0: it must be at least 0"),
        ("[data]\nvalidation = 1", "data.validation is 1.0: give a share"),
        ("[data]\nvalidation = ''", "data.validation is empty: give 0"),
        ("[data]\nformat = 'vok'", "data.format is 'vok': choose one of"),
        ("[evaluate]\nhead_at = 5", "evaluate.head_at is 5, below evaluate.tail_below, 20"),
        ("[evaluate]\ntarget = 0", "evaluate.target is 0.0: give a precision or recall above 0"),
        (
            "[evaluate]\nthresholds = 'cost'\nfalse_positive_cost = 0\nfalse_negative_cost = 0",
            "evaluate.false_positive_cost and evaluate.false_negative_cost are both 0",
        ),
        (
            "[objective]\nloss = 'two_way'\n[evaluate]\ncalibration = 'link'",
            "evaluate.calibration is 'link', but objective.loss 'two_way' has none",
        ),
        ("[objective]\nloss = 'two_way'\nlabel_pair = 'on'", "objective.loss is 'two_way', which has no log-odds"),
        ("[train\nepochs = 1", "line 1, column 7: "),
        ("[train]\nepochs = 1\nepochs = 2\nseed = 1", "line 3, column 11: Cannot overwrite a value"),
        ("[train]\nepochs =", ""),
        (b"[train]\nout = '\xff'", "byte 15 is not UTF-8"),
        ("x = " + "9" * 5000, "Exceeds the limit (4300 digits)"),
        ('[train]\n"a\\nb" = 1', "no setting 'train.a\\nb': choose one of epochs"),
        ('[objective.loss]\n"a\\nb" = 1', "objective.loss.'a\\nb' is given"),
        ("x = " + "[" * 5000, "lists or tables are nested too deeply"),
    ],
)
def test_mistakes_in_a_file(text: str | bytes, sentence: str, tmp_path: Path):
    assert refusal(tmp_path, text).removeprefix("FILE: ").removeprefix("there is ").startswith(sentence)
    assert refusal(tmp_path, text).startswith("FILE: ")


def test_a_mistake_is_laid_at_the_layer_that_made_it(tmp_path: Path):
    assert refusal(tmp_path, "[train]\nepochs = 3", sets=["train.epochs=x"]).startswith("--set: train.epochs is 'x'")
    assert refusal(tmp_path, "[train]\nepochs = 3", sets=["train.epochs=-1"]).startswith("--set: train.epochs is -1: ")
    assert refusal(tmp_path, "[train]\nepochs = -1", sets=["train.seed=1"]).startswith("FILE: train.epochs is -1: ")
    assert refusal(tmp_path, "", sets=["epochs=3"]) == "--set: there is no setting epochs: did you mean train.epochs?"
    assert refusal(tmp_path, "", overrides={"train": {"epochs": -1}}).startswith("train.epochs is -1: ")
    assert refusal(tmp_path, "[objective.loss]\nsmoothing=0.1", recipe="focal").startswith(
        "FILE: objective.loss.smoothing"
    )
    with pytest.raises(ValueError, match=r"^train.epoch|^there is no setting train.epoch: did you mean train.epochs\?"):
        Config().with_overrides({"train": {"epoch": 3}})


@pytest.mark.parametrize("text", ["train.epochs", "=3", "train.=3", ".epochs=3", ""])
def test_what_set_cannot_be(text: str):
    with pytest.raises(ValueError, match=r"write section.key=value, such as train.epochs=10"):
        load_config(sets=[text])


def test_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^plm does not exist: did you mean --recipe plm\?$"):
        load_config("plm")
    with pytest.raises(ValueError, match=r"^a.toml does not exist: give a TOML file$"):
        load_config("a.toml")
    with pytest.raises(ValueError, match="is a folder: give a TOML file"):
        load_config(tmp_path)
    Path("bom.toml").write_bytes(b"\xef\xbb\xbf[train]\nepochs = 2\n")
    assert load_config("bom.toml").train.epochs == 2


@effort(max_examples=100)
@given(
    st.text(max_size=40),
    st.sampled_from(["data.path", "train.epochs", "objective.loss", "objective.masking.clip", "data"]),
)
def test_anything_typed_is_a_setting_or_a_sentence(text: str, key: str):
    try:
        load_config(sets=[f"{key}={text}"])
    except ValueError as refused:
        sentence = str(refused)
    else:
        sentence = "--set"
    assert sentence.startswith(("--set", "objective"))
    assert "\n" not in sentence


# ---- in step with what it configures


def test_the_data_section_has_what_open_data_takes():
    known = set(inspect.signature(open_data).parameters)
    fields = set(fields_of(DataSettings))
    assert known - fields == {"class_names"}  # that is `data.names`; `names` of `open_data` is supplied by the model
    assert fields - known == {"validation", "test", "audit", "corrections"}
    said = DataSettings(
        **{name: _something(setting) for name, setting in fields_of(DataSettings).items() if name != "format"}
    ).reader()
    assert set(said) == known - {"path", "split", "names", "size", "on_bad_image", "cache", "format"}
    assert DataSettings().reader() == {}
    assert DataSettings(labels=("tags",)).reader() == {"labels": "tags"}
    assert DataSettings(labels=("a", "b"), year=2012, format="voc").reader() == {
        "labels": ("a", "b"),
        "year": 2012,
        "format": "voc",
    }


def _something(setting: Any) -> Any:
    if get_origin(setting.type) is Literal:
        return get_args(setting.type)[-1]
    values = {"a list of texts": ["a", "b"], "a whole number": 3, "text": "a"}
    return checked("key", values.get(describe(setting.type), 0.5), setting.type)


def test_sections_made_directly_are_checked_too():
    assert DataSettings(path=Path("x"), validation=0).path == "x"  # type: ignore[arg-type]
    for wrong in (dict(size="3"), dict(size=-1), dict(absent="maybe"), dict(validation=math.inf), dict(labels="a")):
        with pytest.raises(ValueError, match=r"^data\.\w+ is "):
            DataSettings(**wrong)  # type: ignore[arg-type]
    for wrong in (dict(bins=0), dict(thresholds="f2"), dict(tail=0.5), dict(false_negative_cost=-1.0)):
        with pytest.raises(ValueError, match=r"^evaluate\.\w+ is "):
            EvaluateSettings(**wrong)  # type: ignore[arg-type]


def test_without_the_source_there_are_no_comments_but_all_settings(monkeypatch: pytest.MonkeyPatch):
    def missing(cls: type) -> str:
        raise OSError

    monkeypatch.setattr(inspect, "getsource", missing)
    bare = fields_of.__wrapped__(DataSettings)
    assert {name: (s.type, s.default) for name, s in bare.items()} == {
        name: (s.type, s.default) for name, s in fields_of(DataSettings).items()
    }
    assert {s.doc for s in bare.values()} == {""}


def test_every_field_can_be_described_and_has_its_own_default():
    assert {slot: part.kind for slot, part in Config().objective.parts().items()} == {
        slot: default_kind(slot) for slot in get_args(Slot)
    }
    for table, cls in tables(Config):
        for name, setting in fields_of(cls).items():
            if not dataclasses.is_dataclass(setting.type):
                assert describe(setting.type), (table, name)
                assert checked(name, setting.default, setting.type) == setting.default, (table, name)
