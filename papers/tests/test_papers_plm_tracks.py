"""MultiMNIST beyond the PLM paper: who sees which digit, how logits are read, and the table that comes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from steelyard.calibrate import LabelSets
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.sections import ObjectiveSettings
from steelyard.data.builders import exponential_counts
from steelyard.data.dataset import ArrayDataset
from steelyard.data.readers.multi_mnist import N_MAX, RHO, multi_mnist, multi_mnist_digits
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.objective import Objective
from steelyard_papers import beyond, generated
from steelyard_papers import trial as trials
from steelyard_papers.beyond import SCORES, TRACK_READINGS, VIEWS, Pictures, Track, pictures, reader, viewed
from steelyard_papers.command import CATALOGUE
from steelyard_papers.study import Job

RUN = CATALOGUE["plm-beyond"].run


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Job:
    root = tmp_path_factory.mktemp("tracks")
    generated.mnist(root)
    return Job(root, root / "out", smoke=True)


@pytest.fixture(scope="module")
def whole(shared_data: Path) -> Pictures:
    return pictures(Job(shared_data, shared_data))


def seen(data: ArrayDataset) -> set[bytes]:
    return {image.tobytes() for image in data.inputs}


@pytest.mark.slow
def test_tracks_are_the_papers_pictures_and_their_digits(shared_data: Path, whole: Pictures) -> None:
    papers = multi_mnist(shared_data), multi_mnist(shared_data, train=False)
    for one, other in zip((whole.pairs, whole.test), papers, strict=True):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.labels.values, other.labels.values)
    some, _ = multi_mnist_digits(shared_data)
    assert seen(some) < seen(whole.digits)
    np.testing.assert_array_equal(whole.digits.labels.counts, exponential_counts(N_MAX, 10, RHO))


def test_a_rehearsal_sees_no_digit_that_it_is_measured_on(shared_data: Path, whole: Pictures) -> None:
    data = pictures(Job(shared_data, shared_data, validation=0.15))
    counts = data.test.labels.counts
    assert (counts == 2 * 9 * 888).all()
    assert data.pairs.labels.n_items == exponential_counts(N_MAX - 888, 10, RHO).sum()
    assert data.pairs.labels.imbalance == pytest.approx(whole.pairs.labels.imbalance, rel=0.2)
    assert data.digits.labels.n_items == data.pairs.labels.n_items
    assert not seen(data.test) & (seen(whole.test) | seen(data.pairs))
    assert "rehearsal" in data.note


def test_generated_digits_are_too_few_to_set_any_aside(small: Job) -> None:
    plain, rehearsed = pictures(small), pictures(replace(small, validation=0.15))
    assert seen(plain.test) == seen(rehearsed.test)
    assert plain.note == rehearsed.note


def test_label_sets_are_read_without_the_labels_of_the_items() -> None:
    """Two of four labels an item, evenly; learned where the first label is common and half of the items have one."""
    rng = np.random.default_rng(0)
    here = LabelSets.with_frequencies([0.75, 0.4, 0.25, 0.1], [0.0, 0.5, 0.5])
    y = np.zeros((2000, 4), np.int8)
    for row in y:
        row[rng.choice(4, 2, replace=False)] = 1
    u = torch.from_numpy(2.0 * ((2 * y - 1) + rng.normal(size=y.shape))) + here.labels
    z = torch.logit(here._expected(u)[0]).float()
    counts = 1000 * here.frequencies[0].numpy()
    views = torch.cat([z + 0.5 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0)) for _ in VIEWS[1:]])
    targets = torch.from_numpy(y)
    probability_model = ProbabilityModel.of_objective(
        Objective(BCE()), ObjectiveSettings().loss, counts, np.full(4, 1000.0)
    )
    done = SimpleNamespace(
        logits=torch.cat([z, views]), targets=targets, names=tuple("abcd"), probability_model=probability_model
    )
    track = Track({}, None, here, 1.0)  # type: ignore[arg-type]
    rare = torch.tensor([2, 3])
    found = reader(track, rare)(done).values  # type: ignore[arg-type]
    assert list(found) == [f"{name}, {how}" for how in TRACK_READINGS for name in SCORES]
    values = {key: value or 0.0 for key, value in found.items()}
    assert values["0-1, label sets"] > values["0-1, prior"] + 5 > values["0-1, σ"] + 5
    assert values["F1 of the 3 rarest, label sets"] > values["F1 of the 3 rarest, σ"]
    assert values["ACE, label sets"] < 4
    warm = reader(track._replace(temperature=3.0), rare, 1)(SimpleNamespace(**{**vars(done), "logits": z}))  # type: ignore[arg-type]
    assert values["ACE, label sets"] < (warm.values["ACE, label sets"] or 0.0)
    assert warm.values["0-1, views"] == warm.values["0-1, label sets"], "of one view"
    z_mean = done.logits.view(len(VIEWS), *z.shape).mean(0).double()
    there = here.estimate(z_mean)
    np.testing.assert_allclose(there.frequencies[0], 0.5, atol=0.04)
    best = here.most_probable(z_mean, there)
    assert values["0-1, views"] == pytest.approx(100 * float((best == targets.bool()).all(1).double().mean()))


def test_views_are_the_pictures_shifted_by_a_pixel() -> None:
    inputs = np.arange(1, 33, dtype=np.uint8).reshape(2, 1, 4, 4)
    shifted = viewed(ArrayDataset(inputs, Labels(np.eye(2, dtype=np.int8)))).inputs.reshape(len(VIEWS), 2, 4, 4)
    for view, (down, right) in zip(shifted, VIEWS, strict=True):
        expected = np.roll(inputs[:, 0], (down, right), (1, 2))
        if down:
            expected[:, 0 if down > 0 else -1] = 0
        if right:
            expected[:, :, 0 if right > 0 else -1] = 0
        np.testing.assert_array_equal(view, expected)


def test_networks_are_trained_once_and_measured_by_their_mean_too(
    small: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few(data: ArrayDataset, n: int) -> ArrayDataset:
        return ArrayDataset(data.inputs[:n], data.labels.take(np.arange(n)))

    data = pictures(small)
    shortened = data._replace(pairs=few(data.pairs, 64), test=few(data.test, 40))
    monkeypatch.setattr(beyond, "pictures", lambda job: shortened)
    monkeypatch.setattr(beyond, "VIEWS", VIEWS[:1])
    sets = ("train.epochs=1", "model.backbone=small", "train.device=cpu")
    job = Job(small.data_root, tmp_path / "out", sets=sets, ledger=tmp_path / "ledger.jsonl", note="a copy")
    first = RUN(replace(job, rows=("warped",)))
    assert [row.name for row in first.rows] == ["warped"]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1, "and none that it does not need"
    both = RUN(replace(job, rows=("BCE and warped", "warped")))
    assert [row.name for row in both.rows] == ["warped", "BCE and warped"], "in the order of the table"
    assert both.rows[0] == first.rows[0]
    runs = [trials.read(folder) for folder in (tmp_path / "out" / "runs").iterdir()]
    assert both.rows[1].runs[0].seconds == pytest.approx(sum(run.facts["seconds"] for run in runs)) == both.seconds
    mean = torch.stack([run.logits for run in runs]).mean(0)
    right = ((mean >= 0) == runs[0].targets.bool()).all(1).double().mean()
    assert both.rows[1].mean("0-1, σ") == pytest.approx(100 * float(right))
    assert set(both.rows[1].runs[0].values) == set(both.columns)
    monkeypatch.setattr(trials, "learn", None)
    again = RUN(replace(job, out=tmp_path / "gone", rows=("BCE and warped", "warped"), note=""))
    assert again.rows == both.rows, "the ledger stands in for runs that are gone"
    assert "a copy" in again.data
    with pytest.raises(ValueError, match="there is no row"):
        RUN(replace(job, rows=("nothing",)))


def test_the_open_track_has_other_warps_of_the_same_digits(small: Job) -> None:
    paper, open_ = beyond.tracks(pictures(small))
    assert [*paper.rows, *open_.rows] == [name for name in beyond.TRACK_ROWS if name not in beyond.TOGETHER]
    augment = {name: settings["train"]["augment"] for name, settings in open_.rows.items()}
    plain, warped, slight = augment.values()
    assert plain == {**warped, "warp": 0.0}
    assert slight == {**warped, **beyond.SLIGHT}
    assert all(settings["data"]["validation"] == 0 for settings in open_.rows.values())
