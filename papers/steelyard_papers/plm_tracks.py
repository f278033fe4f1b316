"""Beyond the PLM paper on MultiMNIST: what varied pictures, a second network and views of test pictures add, and what
knowing how many labels a picture has adds to its probabilities.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard._files import write_atomic
from steelyard.calibrate import LabelSets
from steelyard.config import recipes
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.metrics import calibration_error, exact_match, precision_recall_f1, rarest_labels
from steelyard.run.datasets import Datasets
from steelyard.run.deployment import ESTIMATE, deployment
from steelyard.run.resume import facts as known_by
from steelyard_papers.ledger import claimed, note, noted
from steelyard_papers.plm_rehearsal import Tracks, tracks
from steelyard_papers.plm_rows import MNIST, base_of
from steelyard_papers.reproduction import BEYOND, Job, Reproduction
from steelyard_papers.result import Result, RowResult, RunResult
from steelyard_papers.study import Row, Settings, chosen_rows, merged, result_of, settings_of
from steelyard_papers.trial import Trial, key_of, trial

READINGS = ("σ", "prior", "label sets", "views")
"""The last: label sets, of the mean logits of a picture and of its `VIEWS`."""
VIEWS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Pixels, down and right, by which test pictures are shifted."""
SCORES = ("F1", "F1 of the 3 rarest", "0-1", "ACE")
TEMPERATURE = {"paper": 1.5, "open": 1.25}
"""By which a track divides log-odds, having no items to fit it to; chosen in a rehearsal."""

RECIPES = ("multimnist-plm", "multimnist-beyond", "multimnist-open")
FAST: Settings = {"evaluate": {"batch_size": 1024}}
UNPAIRED: Settings = {"objective": {"label_pair": "none"}}
OPEN: Settings = {
    "data": {"validation": 0.0},
    "train": {"epochs": 100, "validate_every": 100},
    "evaluate": {"calibration": "none"},
}
"""All digits are trained on, none held out: of the rarest class there are 59."""
SLIGHT = {"rotate": 8.0, "scale": 0.08, "shear": 0.1, "elastic": 0.75, "warp": 1.0}
"""Warps of half the strength, of every digit: another network that is as good, to take the mean with."""


class Lesson(NamedTuple):
    """A network that is trained: on what, and how its outputs are read."""

    settings: Settings
    data: Datasets
    sets: LabelSets
    """Of what it is trained on."""
    temperature: float


class Taken(NamedTuple):
    """A lesson that is over."""

    trial: Trial
    values: dict[str, float | None]


@dataclass(frozen=True)
class School:
    """Where lessons are taken, by one seed; `rare` are the labels that are measured apart."""

    job: Job
    seed: int
    rare: Tensor

    @property
    def views(self) -> tuple[tuple[int, int], ...]:
        """How test pictures are seen: of generated ones, once."""
        return VIEWS[:1] if self.job.smoke else VIEWS

    def learn(self, lesson: Lesson) -> Taken:
        """Train a network, or read what was trained before, and measure it."""
        data = lesson.data._replace(test=viewed(lesson.data.test, self.views))
        config = settings_of(self.job, FAST, Row("", lesson.settings), self.seed, data)
        key = key_of(config, data)
        with claimed(self.job.out / "locks" / key, waits=True):  # another table may have it too
            taken = trial(config, data, self.job.out / "runs" / key, self.job.console, self.job.note)
        return measured(taken, lesson, self.rare, len(self.views))

    def together(self, lesson: Lesson, *taken: Taken) -> Taken:
        """Measure networks of the same lesson by the mean of their logits."""
        first = taken[0].trial
        logits = torch.stack([one.trial.logits for one in taken]).mean(0)
        seconds = sum(one.trial.facts["seconds"] for one in taken)
        several = replace(first, outputs={"test": (logits, first.targets)}, facts={**first.facts, "seconds": seconds})
        return measured(several, lesson, self.rare, len(self.views))


def _paper(data: Tracks, school: School) -> Iterator[tuple[str, Taken]]:
    """The paper's track: its 14,694 pictures."""
    beyond = recipes.settings("multimnist-beyond")
    given = Datasets(data.pictures, None, data.test)
    lesson = Lesson(base_of("multimnist-plm"), given, LabelSets.of(data.pictures.labels.values), TEMPERATURE["paper"])
    plain = school.learn(lesson)
    yield "BCE", plain
    varied = school.learn(lesson._replace(settings=merged(beyond, UNPAIRED)))
    yield "warped", varied
    yield "warped, label pairs", school.learn(lesson._replace(settings=beyond))
    yield "BCE and warped", school.together(lesson, plain, varied)


def _open(data: Tracks, school: School) -> Iterator[tuple[str, Taken]]:
    """The open track: the same digits, paired and shifted anew at every step."""
    even = np.eye(10, dtype=np.int8)
    pairs = LabelSets.of(np.maximum(even[:, None], even[None]).reshape(100, 10))  # of two classes drawn evenly
    settings = merged(recipes.settings("multimnist-open"), OPEN)
    lesson = Lesson(settings, Datasets(data.digits, None, data.test), pairs, TEMPERATURE["open"])
    yield "open", school.learn(lesson._replace(settings=_warped(settings, {"warp": 0.0})))
    half = school.learn(lesson)
    yield "open, warped", half
    slight = school.learn(lesson._replace(settings=_warped(settings, SLIGHT)))
    yield "open, slightly warped", slight
    yield "open, both networks", school.together(lesson, half, slight)


def _warped(settings: Settings, warps: Settings) -> Settings:
    """Return settings with other warps: digits are paired and shifted as before."""
    return merged(settings, {"train": {"augment": {**settings["train"]["augment"], **warps}}})


def viewed(test: ArrayDataset, views: Sequence[tuple[int, int]] = VIEWS) -> ArrayDataset:
    """Return the pictures shifted as `views` says, one shift of all of them after the other; zeros come in."""
    height, width = test.inputs.shape[-2:]
    padded = np.pad(test.inputs, ((0, 0), (0, 0), (1, 1), (1, 1)))
    parts = [padded[:, :, 1 - down : 1 - down + height, 1 - right : 1 - right + width] for down, right in views]
    labels = Labels(np.tile(test.labels.values, (len(views), 1)), names=test.labels.names)
    return ArrayDataset(np.concatenate(parts), labels)


TRACKS = {"paper": _paper, "open": _open}
ROWS = {
    "BCE": "paper",
    "warped": "paper",
    "warped, label pairs": "paper",
    "BCE and warped": "paper",
    "open": "open",
    "open, warped": "open",
    "open, slightly warped": "open",
    "open, both networks": "open",
}
"""The track of each row, in order."""
TOGETHER = ("BCE and warped", "open, both networks")
"""Rows for which nothing is trained."""


def measured(done: Trial, lesson: Lesson, rare: Tensor, n_views: int = len(VIEWS)) -> Taken:
    """Read the logits of a run by σ, for the estimated prior, and by estimated label sets, and measure each.

    No label of the items is used until they are measured: decisions, at ½ or the most probable set, those on the labels
    `rare` apart, and calibration.
    """
    reading = done.reading
    each = done.logits.view(n_views, -1, done.logits.shape[1])
    logits, targets = each[0], done.targets[: each.shape[1]]
    there = deployment(ESTIMATE, replace(reading, sets=None), done.names, logits).of(reading)
    by_sets = [_by_sets(lesson, reading.log_odds(z.double())) for z in (logits, each.mean(0))[: min(2, n_views)]]
    by_sets += by_sets[:1] * (2 - len(by_sets))
    plain, shifted = torch.sigmoid(logits), there.probability(logits)
    said = ((plain, plain >= 0.5), (shifted, shifted >= 0.5), *by_sets)
    values: dict[str, float | None] = {}
    for how, (eta, present) in zip(READINGS, said, strict=True):
        f1 = precision_recall_f1(present, targets).f1.double()
        all_right, ace = exact_match(present, targets), calibration_error(eta, targets).ace
        for name, value in zip(SCORES, (f1.mean(), f1[rare].mean(), all_right, ace), strict=True):
            values[f"{name}, {how}"] = 100 * float(value)
    return Taken(done, values)


def _by_sets(lesson: Lesson, log_odds: Tensor) -> tuple[Tensor, Tensor]:
    """Return η, float32, and the most probable sets, both for the estimated distribution of label sets."""
    odds = log_odds / lesson.temperature
    there = lesson.sets.estimate(odds)
    potentials = lesson.sets.potentials(odds) + there.labels - lesson.sets.labels
    return there.marginals(potentials).float(), there.best(potentials)


def _track(job: Job, name: str, seed: int, data: Tracks, last: str) -> dict[str, Any]:
    """Take the lessons of a track up to the row `last`; return what was measured on each, and the facts about it."""
    rare = torch.from_numpy(rarest_labels(data.pictures.labels.counts, 3).copy())
    said = {}
    for row, taken in TRACKS[name](data, School(job, seed, rare)):
        said[row] = {"values": taken.values, "facts": taken.trial.facts}
        job.progress(f"{row}, seed {seed}: {taken.trial.facts['seconds']:.1f} s; {_line(taken.values)}")
        if row == last:
            break
    return said


def _line(values: dict[str, float | None]) -> str:
    return ", ".join(f"{key} {value:.2f}" for key, value in values.items() if value is not None)


def _beyond(job: Job) -> Result:
    """Run the tracks with every seed; one that is finished is read, and one that another process is at comes last."""
    wanted = [row.name for row in chosen_rows(job, [Row(name) for name in ROWS])]
    last = {ROWS[row]: row for row in wanted}
    left = [(name, seed) for seed in job.seeds for name in last]
    data = tracks(job)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for waits in (False, True):
        for name, seed in left:
            file = job.out / "tracks" / f"{_mark(job, data)}-{name}-{seed}.json"
            with claimed(job.out / "locks" / file.stem, waits) as is_ours:
                if is_ours:
                    said = {**_noted(job, file.stem), **_kept(file)}
                    if not {row for row in wanted if ROWS[row] == name} <= said.keys():
                        file.parent.mkdir(parents=True, exist_ok=True)
                        said = _track(job, name, seed, data, last[name])
                        write_atomic(file, json.dumps(said) + "\n")
                    _note(job, file.stem, said)
                    found[name, seed] = said
        left = [one for one in left if one not in found]
    rows = [(row, [(seed, found[ROWS[row], seed][row]) for seed in job.seeds]) for row in wanted]
    facts = [run["facts"] for row, runs in rows if row not in TOGETHER for _, run in runs]
    done = tuple(
        RowResult(row, tuple(RunResult(seed, run["values"], run["facts"]["seconds"]) for seed, run in runs))
        for row, runs in rows
    )
    columns = [f"{name}, {how}" for name in SCORES for how in READINGS]
    return result_of(job, columns, done, [data.note], facts)


def _kept(file: Path) -> dict[str, Any]:
    """What was measured on a track before; nothing where the file is damaged: then it is measured again."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return {row: one for row, one in said.items() if {"values", "facts"} <= one.keys()}
    except (OSError, ValueError, AttributeError):
        return {}


def _noted(job: Job, mark: str) -> dict[str, Any]:
    """What the ledger notes of a track."""
    if job.ledger is None or job.smoke:
        return {}
    return {row: said for row in ROWS if (said := noted(job.ledger, mark, row)) is not None}


def _note(job: Job, mark: str, said: dict[str, Any]) -> None:
    """Note what the ledger does not know of a track yet."""
    if job.ledger is None or job.smoke:
        return
    for row, one in said.items():
        if noted(job.ledger, mark, row) is None:
            facts = {"note": job.note, **one["facts"]}
            note(job.ledger, mark, row, {"values": one["values"], "details": {}, "facts": facts})


def _mark(job: Job, data: Tracks) -> str:
    """What a track's numbers are known by: a checksum of what they come from."""
    seen = [known_by(Datasets(part, None, None)) for part in (data.pictures, data.test)]
    said = [job.sets, job.smoke, job.validation, [recipes.settings(name) for name in RECIPES], seen]
    return f"{zlib.crc32(Path(__file__).read_bytes() + repr(said).encode()):08x}"


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "plm-beyond",
        BEYOND,
        "MultiMNIST beyond the paper, on its own pictures and on its own digits",
        (MNIST,),
        4,
        _beyond,
        note="BCE is plm-table1's, trained anew; warped has dropout .5, a cosine schedule, averaged weights and shifts "
        "by two pixels too, and half of its pictures are warped; label pairs: with LPR, of weight .1. Open: the same "
        "digits, drawn evenly by class and paired and shifted by up to six pixels anew at every step; warped, half "
        "of the digits, or slightly warped, all of them by half as much. Both networks, BCE and warped: the mean of "
        "two networks' logits. Prior: for label frequencies estimated from the test pictures; label sets: for "
        "frequencies and numbers of labels of a picture estimated so, "
        f"log-odds divided by {TEMPERATURE['paper']:g}, open by {TEMPERATURE['open']:g}, chosen "
        "in a rehearsal; views: the same, of logits that are means over shifts by a pixel; no label of a test "
        "picture is used. --validation .15 is the rehearsal, on training digits alone",
    ),
)
"""One table."""
