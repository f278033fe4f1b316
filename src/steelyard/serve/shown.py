"""What the application shows: one run, its index, its labels, and answers made from them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, final

from steelyard import __version__
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import UNKNOWN, Labels
from steelyard.metrics.measures import number
from steelyard.run.locating import run_config
from steelyard.search import Hit, Index, Query, QueryError
from steelyard.serve import data_page, label_page
from steelyard.serve.asking import asked
from steelyard.serve.completion import Completion
from steelyard.serve.pictures import SIDES, NoPicture, Picture, Pictures
from steelyard.serve.truth import Judged, Truth, judged, own_truth

MOST_SECONDS = 10.0
"""A search that takes longer is broken off."""
MOST_OF_AN_ITEM = 200
"""Labels of an item that are listed, the likeliest."""


class Unsearchable(Exception):
    """The files of the index are corrupt."""


class Missing(Exception):
    """There is no such item or label."""


class ImageFile(NamedTuple):
    """A file that may be shown, and what tells it from others that had its name."""

    file: Path
    changed: int
    size: int


@final
class Shown:
    """A finished run and its index; for the arguments see `make_app`. Its methods may be called from any thread."""

    def __init__(
        self,
        run_folder: str | os.PathLike[str],
        index: Index,
        labels: Labels | None,
        images: str | os.PathLike[str] | None,
    ) -> None:
        trained = RunFolder(run_folder).load()
        self.folder = Path(run_folder)
        self.index, self.names = index, index.names
        place = {name: i for i, name in enumerate(trained.names)}
        thresholds, counts, known = trained.thresholds, trained.counts, trained.n_known
        self._facts: dict[str, dict[str, Any]] = {
            name: {
                "name": name,
                "positives": int(counts[place[name]]) if name in place else None,
                "known": int(known[place[name]]) if name in place else None,
                "threshold": number(thresholds[place[name]]) if name in place else None,
            }
            for name in self.names
        }
        self.complete = Completion(self.names, [self._facts[name]["positives"] or 0 for name in self.names])
        self.pictures = Pictures(images if images is not None else images_of(run_folder))
        self._has_images = self.pictures.root is not None and index.first_path() is not None
        self._lock = threading.Lock()
        self._truth = None
        if labels is not None:
            same = tuple(labels.names) == self.names
            self._truth = Truth(
                {"test": labels} if same else {}, "The labels that were given are not those of the index."
            )
        self._judged: Judged | None = None
        self._is_judged = False

    def over(self, index: Index) -> Shown:
        """Return the same run over a later generation of its index."""
        other = copy(self)
        other.index, other._lock, other._judged, other._is_judged = index, threading.Lock(), None, False
        return other

    def warm_up(self, seconds: float = 2.0) -> None:
        """Do what requests will ask for, so that the first of them need not wait: frequent labels first."""
        until = time.monotonic() + seconds
        with suppress(Unsearchable, TimeoutError, NoPicture):  # who asks for it will be told
            for label in self.complete("", len(self.names)):
                if time.monotonic() > until:
                    break
                self.search("", [label], [], [], 1, 0)
            self.pictures.make(self.pictures.allowed(self.index.first_path()), SIDES["small"])

    @property
    def version(self) -> tuple[str, int]:
        """The identity of the index and how often it was written: what an answer depends on."""
        return self.index.uuid, self.index.generation

    @property
    def truth(self) -> Truth:
        """What is known to be true, read when it is first asked for."""
        with self._lock:
            if self._truth is None:
                self._truth = own_truth(self.folder, self.names)
            return self._truth

    def facts(self) -> dict[str, Any]:
        """See `shapes.RunFacts`."""
        return {
            "name": self.folder.resolve().name,
            "n_items": self.index.n_items,
            "n_labels": len(self.names),
            "has_images": self._has_images,
            "version": __version__,
        }

    def labels(self, text: str, k: int) -> dict[str, Any]:
        """See `shapes.LabelList`."""
        return {"labels": [self._fact(name) for name in self.complete(text, k)], "total": len(self.names)}

    def search(
        self, text: str, wanted: Sequence[str], unwanted: Sequence[str], limits: Sequence[str], k: int, offset: int
    ) -> dict[str, Any]:
        """See `shapes.SearchResult`; for the arguments `asking.asked`."""
        question = asked(self.names, text, wanted, unwanted, limits)
        hits = [] if question is None else self._hits(question.query, k + 1, offset)
        terms = [] if question is None else _terms(question.query.terms)
        return {
            "query": "" if question is None else str(question.query),
            "plain": question is None or question.plain,
            "terms": [{"label": label, "wanted": is_wanted} for label, is_wanted in terms],
            "hits": [hit._asdict() for hit in hits[:k]],
            "more": len(hits) > k,
            "n_items": self.index.n_items,
            "index": self.index.uuid,
            "generation": self.index.generation,
        }

    def _hits(self, query: Query, k: int, offset: int) -> list[Hit]:
        """The best items; those that the query rules out are left out."""
        try:
            ranked = self.index.search(query, k=k, offset=offset, seconds=MOST_SECONDS)
        except QueryError:
            raise
        except ValueError as error:
            raise Unsearchable(str(error)) from None
        return [hit for hit in ranked if hit.score > 0]

    def item(self, id: str) -> dict[str, Any]:
        """See `shapes.ItemFacts`."""
        if id not in self.index:
            raise Missing(f"there is no item {id!r:.120}")
        row = self.index.rows([id])[0]
        true = self.truth.of(id)
        found: list[dict[str, Any]] = [
            {
                "label": name,
                "probability": float(p),
                "threshold": self._facts[name]["threshold"],
                "truth": None if true is None or true[1][i] == UNKNOWN else float(true[1][i]),
            }
            for i, (name, p) in enumerate(zip(self.names, row, strict=True))
        ]
        found.sort(key=lambda reading: -reading["probability"])
        listed = found[:MOST_OF_AN_ITEM]
        return {
            "id": id,
            "has_image": self._has_image(id),
            "labels": listed,
            "left_out": len(found) - len(listed),
            "annotated": None if true is None else true[0],
        }

    def image(self, id: str) -> ImageFile:
        """Return the image file of an item, which the index must list."""
        file = self.pictures.allowed(self._path(id))
        found = file.stat()
        return ImageFile(file, found.st_mtime_ns, found.st_size)

    def picture(self, image: ImageFile, size: str) -> Picture:
        """Return an image file as a small JPEG picture."""
        return self.pictures.make(image.file, SIDES[size])

    def label(self, name: str) -> dict[str, Any]:
        """See `shapes.LabelPage`."""
        if name not in self._facts:
            raise Missing(f"there is no label {name!r:.120}")
        place = self.names.index(name)
        found = self._judged_now()
        nothing: dict[str, Any] = {"n_items": 0, "n_present": 0, "average_precision": None, "calibration_error": None}
        nothing |= {"bins": None, "curve": None, "right": [], "wrong": [], "missed": []}
        measured = nothing if found is None else label_page.performance(place, found)
        training = self.truth.parts.get("training")
        return {
            **self._facts[name],
            "part": None if found is None else found.part,
            "note": found.note if found is not None else self._why_not(),
            **measured,
            "neighbours": [] if training is None else label_page.neighbours(place, training),
        }

    def data(self) -> dict[str, Any]:
        """See `shapes.DataPage`."""
        training = self.truth.parts.get("training")
        nothing: dict[str, Any] = {"together": [], "conditional": [], "both": []}
        return {
            **data_page.frequencies([self._fact(name) for name in self.names]),
            "n_items": None if training is None else training.n_items,
            **(nothing if training is None else data_page.co_occurrence(training)),
            "note": "" if training is not None else self._why_not(),
        }

    def _fact(self, name: str) -> dict[str, Any]:
        return {key: self._facts[name][key] for key in ("name", "positives", "threshold")}

    def _path(self, id: str) -> str | None:
        try:
            return self.index.path(id)
        except ValueError:  # there is no such item
            return None

    def _has_image(self, id: str) -> bool:
        try:
            self.pictures.allowed(self._path(id))
        except NoPicture:
            return False
        return True

    def _judged_now(self) -> Judged | None:
        truth = self.truth
        with self._lock:
            if not self._is_judged:
                self._judged, self._is_judged = judged(truth, self.index), True
            return self._judged

    def _why_not(self) -> str:
        return self.truth.why or "What is true of the items in the index is not known here."


def images_of(run: str | os.PathLike[str]) -> str | None:
    """Return the folder of images that whoever trained a run named, None where that is none or the whole disk."""
    try:
        data = run_config(run).data
    except ValueError:
        return None
    folder = Path(data.images or data.path).absolute() if data.images or data.path else None
    if folder is None or not folder.exists():
        return None
    folder = folder if folder.is_dir() else folder.parent
    return None if folder == Path(folder.anchor) else str(folder)


def _terms(terms: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Each label once, in order; one that is both wanted and not is shown as wanted."""
    found: dict[str, bool] = {}
    for label, wanted in terms:
        found[label] = found.get(label, False) or wanted
    return list(found.items())
