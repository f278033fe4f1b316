"""MultiMNIST beyond the PLM paper: who sees which digit, how logits are read, and the table that comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from steelyard.calibrate import LabelSets
from steelyard.calibrate.probability import Reading
from steelyard.config.sections import ObjectiveSettings
from steelyard.data.builders import exponential_counts
from steelyard.data.dataset import ArrayDataset
from steelyard.data.readers.multi_mnist import N_MAX, RHO, multi_mnist, multi_mnist_digits
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.objective import Objective
from steelyard.run.datasets import Datasets
from steelyard_papers import fixtures, plm_tracks
from steelyard_papers.plm_rehearsal import tracks
from steelyard_papers.plm_tracks import (
    READINGS,
    ROWS,
    SCORES,
    VIEWS,
    Lesson,
    School,
    Taken,
    Tracks,
    measured,
    viewed,
)
from steelyard_papers.reproduction import Job


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Job:
    root = tmp_path_factory.mktemp("tracks")
    fixtures.mnist(root)
    return Job(root, root / "out", smoke=True)


@pytest.fixture(scope="module")
def whole(shared_data: Path) -> Tracks:
    return tracks(Job(shared_data, shared_data))


def seen(data: ArrayDataset) -> set[bytes]:
    return {image.tobytes() for image in data.inputs}


@pytest.mark.slow
def test_tracks_are_the_papers_pictures_and_their_digits(shared_data: Path, whole: Tracks) -> None:
    data = whole
    pictures, test = multi_mnist(shared_data), multi_mnist(shared_data, train=False)
    for one, other in ((data.pictures, pictures), (data.test, test)):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.labels.values, other.labels.values)
    some, _ = multi_mnist_digits(shared_data)
    assert seen(some) < seen(data.digits)
    np.testing.assert_array_equal(data.digits.labels.counts, exponential_counts(N_MAX, 10, RHO))


def test_a_rehearsal_sees_no_digit_that_it_is_measured_on(shared_data: Path, whole: Tracks) -> None:
    data = tracks(Job(shared_data, shared_data, validation=0.15))
    counts = data.test.labels.counts
    assert (counts == counts[0]).all()
    assert counts[0] == 2 * 9 * 888
    assert data.pictures.labels.n_items == exponential_counts(N_MAX - 888, 10, RHO).sum()
    assert data.pictures.labels.imbalance == pytest.approx(whole.pictures.labels.imbalance, rel=0.2)
    assert data.digits.labels.n_items == data.pictures.labels.n_items
    assert not seen(data.test) & (seen(whole.test) | seen(data.pictures))
    assert "rehearsal" in data.note


def test_generated_digits_are_too_few_to_set_any_aside(small: Job) -> None:
    plain, rehearsed = tracks(small), tracks(replace(small, validation=0.15))
    assert seen(plain.test) == seen(rehearsed.test)
    assert plain.note == rehearsed.note


def reading_of(counts: np.ndarray, n: int) -> Reading:
    return Reading.of_objective(Objective(BCE()), ObjectiveSettings().loss, counts, np.full(len(counts), float(n)))


def test_label_sets_are_read_without_the_labels_of_the_items() -> None:
    """Two of four labels an item, evenly; learned where the first label is common and half of the items have one."""
    rng = np.random.default_rng(0)
    here = LabelSets.with_frequencies([0.75, 0.4, 0.25, 0.1], [0.0, 0.5, 0.5])
    y = np.zeros((4000, 4), np.int8)
    for row in y:
        row[rng.choice(4, 2, replace=False)] = 1
    u = torch.from_numpy(2.0 * ((2 * y - 1) + rng.normal(size=y.shape))) + here.labels
    z = torch.logit(here._expected(u)[0]).float()
    counts = 1000 * here.frequencies[0].numpy()
    views = torch.cat([z + 0.5 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0)) for _ in VIEWS[1:]])
    logits, targets, names = torch.cat([z, views]), torch.from_numpy(y), tuple("abcd")
    done = SimpleNamespace(logits=logits, targets=targets, counts=counts, names=names, reading=reading_of(counts, 1000))
    lesson = Lesson({}, Datasets(None, None, None), here, 1.0)
    found = measured(done, lesson, torch.tensor([2, 3]))  # type: ignore[arg-type]
    assert list(found.values) == [f"{name}, {how}" for how in READINGS for name in SCORES]
    values = {key: value or 0.0 for key, value in found.values.items()}
    assert values["0-1, label sets"] > values["0-1, prior"] + 5 > values["0-1, σ"] + 5
    assert values["F1 of the 3 rarest, label sets"] > values["F1 of the 3 rarest, σ"]
    assert values["ACE, label sets"] < 4
    warm = measured(done, lesson._replace(temperature=3.0), torch.tensor([2, 3]))  # type: ignore[arg-type]
    assert values["ACE, label sets"] < (warm.values["ACE, label sets"] or 0.0)
    z_mean = done.logits.view(len(VIEWS), *z.shape).mean(0)
    there = here.estimate(z_mean)
    np.testing.assert_allclose(there.frequencies[0], 0.5, atol=0.03)
    eta, best = plm_tracks._by_sets(lesson, z_mean.double())
    np.testing.assert_allclose(eta, here.probability(z_mean, there), atol=1e-5)
    assert torch.equal(best, here.most_probable(z_mean.double(), there))
    assert values["0-1, views"] == pytest.approx(100 * float((best == targets.bool()).all(1).double().mean()))


def test_views_are_the_pictures_shifted_by_a_pixel() -> None:
    inputs = np.arange(1, 33, dtype=np.uint8).reshape(2, 1, 4, 4)
    seen = viewed(ArrayDataset(inputs, Labels(np.eye(2, dtype=np.int8)))).inputs.reshape(len(VIEWS), 2, 4, 4)
    for view, (down, right) in zip(seen, VIEWS, strict=True):
        wanted = np.roll(inputs[:, 0], (down, right), (1, 2))
        if down:
            wanted[:, 0 if down > 0 else -1] = 0
        if right:
            wanted[:, :, 0 if right > 0 else -1] = 0
        np.testing.assert_array_equal(view, wanted)


def test_a_table_is_made_once_and_read_again(small: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    job = replace(small, rows=("BCE*", "warped*"), progress=lines.append)

    def shortened(data: Tracks, school: School) -> Iterator[tuple[str, Taken]]:
        first = ArrayDataset(data.pictures.inputs[:64], data.pictures.labels.take(np.arange(64)))
        few = ArrayDataset(data.test.inputs[:40], data.test.labels.take(np.arange(40)))
        return plm_tracks._paper(data._replace(pictures=first, test=few), school)

    monkeypatch.setitem(plm_tracks.TRACKS, "paper", shortened)
    first = plm_tracks.REPRODUCTIONS[0].run(replace(job, rows=("warped",)))
    assert [row.name for row in first.rows] == ["warped"]
    assert [line.split(", seed")[0] for line in lines] == ["BCE", "warped"]  # and none that comes after
    lines.clear()
    found = plm_tracks.REPRODUCTIONS[0].run(job)
    assert found.row("warped") == first.rows[0]
    assert [row.name for row in found.rows] == [name for name, track in ROWS.items() if track == "paper"]
    assert [line.split(", seed")[0] for line in lines] == [row.name for row in found.rows]
    assert found.row("BCE and warped").runs[0].seconds == pytest.approx(
        sum(found.row(name).runs[0].seconds for name in ("BCE", "warped"))
    )
    assert all(row.runs[0].values.keys() == set(found.columns) for row in found.rows)
    again = plm_tracks.REPRODUCTIONS[0].run(job)
    assert again == found
    assert len(lines) == len(found.rows)
    only = plm_tracks.REPRODUCTIONS[0].run(replace(job, rows=("BCE",)))
    assert [row.name for row in only.rows] == ["BCE"]
    with pytest.raises(ValueError, match="there is no row"):
        plm_tracks.REPRODUCTIONS[0].run(replace(job, rows=("nothing",)))
    (file,) = (small.out / "tracks").iterdir()
    for damaged in (file.read_text()[:100], '{"BCE": {}, "warped": 3}', "[]"):
        file.write_text(damaged)
        assert plm_tracks.REPRODUCTIONS[0].run(job).rows == found.rows, "measured again, of runs that are there"
    data = tracks(small)
    other = data._replace(test=ArrayDataset(255 - data.test.inputs, data.test.labels))
    assert plm_tracks._mark(job, other) != plm_tracks._mark(job, data)


def test_a_ledger_stands_in_for_tracks_that_are_gone(
    small: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, int]] = []

    def track(job: Job, name: str, seed: int, data: Tracks, last: str) -> dict[str, Any]:
        taken.append((name, seed))
        facts = {"seconds": 2.0, "device": "CPU", "versions": {"steelyard": "1"}, "commit": "c0ffee"}
        rows = [row for row, its in ROWS.items() if its == name]
        return {row: {"values": {"F1, σ": 80.0 + seed}, "facts": facts} for row in rows[: rows.index(last) + 1]}

    monkeypatch.setattr(plm_tracks, "_track", track)
    monkeypatch.setattr(plm_tracks, "tracks", lambda job: tracks(small))
    ledger = tmp_path / "ledger.jsonl"
    asked = Job(small.data_root, tmp_path / "a", (0, 1), rows=("open",), ledger=ledger, note="a copy")
    first = plm_tracks.REPRODUCTIONS[0].run(asked)
    assert taken == [("open", 0), ("open", 1)]
    assert len(ledger.read_text().splitlines()) == 2
    again = plm_tracks.REPRODUCTIONS[0].run(replace(asked, out=tmp_path / "b", seeds=(0, 1, 2), note=""))
    assert taken == [("open", 0), ("open", 1), ("open", 2)]
    assert again.rows[0].runs[:2] == first.rows[0].runs
    assert "a copy" in again.data
    more = plm_tracks.REPRODUCTIONS[0].run(replace(asked, out=tmp_path / "c", rows=("open, warped",)))
    assert taken[3:] == [("open", 0), ("open", 1)], "the ledger knew the row before it alone"
    assert [row.name for row in more.rows] == ["open, warped"]
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(line for line in lines if '"open, warped"' not in line) + lines[-1][:40])
    both = plm_tracks.REPRODUCTIONS[0].run(replace(asked, out=tmp_path / "d", rows=("open", "open, warped")))
    assert taken[5:] == [("open", 0), ("open", 1)], "a damaged line is trained again"
    assert [row.runs for row in both.rows] == [first.rows[0].runs] * 2
