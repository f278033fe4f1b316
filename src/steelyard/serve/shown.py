"""What the application shows: one run, its index, its labels, and answers made from them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from steelyard import __version__
from steelyard.labels import UNKNOWN, Labels
from steelyard.run.finding import index_command
from steelyard.run.folder import RunFolder
from steelyard.run.measures import number
from steelyard.search import Index
from steelyard.serve import data_page, label_page
from steelyard.serve.archive import Archive, View
from steelyard.serve.asking import Asked
from steelyard.serve.completion import Completion
from steelyard.serve.pictures import SIDES, NoPicture, Picture, Pictures
from steelyard.serve.truth import Judged, Truth, judged, own_truth

MOST_OF_AN_ITEM = 200
"""Labels of an item that are listed, the likeliest."""


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
        index: Index | str | os.PathLike[str] | None,
        labels: Labels | None,
        images: str | os.PathLike[str] | None,
    ) -> None:
        if images is not None and not Path(images).is_dir():
            raise ValueError(f"images is {os.fspath(images)!r}, which is not a folder: give the folder of the images")
        folder = RunFolder(run_folder)
        trained = folder.load()
        self.folder = Path(run_folder)
        if index is None:
            index = folder / "index"
            if not index.is_dir():
                raise ValueError(
                    f"{folder.path} has no index to search: make one with {index_command(folder.path, index)}, or give "
                    "another with --index"
                )
        self.archive = Archive(index)
        self.names = self.archive.names
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
        view = self.archive.now
        self.pictures = Pictures(images if images is not None else view.index.notes.get("images"))
        self._has_images = view.has_paths()
        self._lock = threading.Lock()
        self._truth = None if labels is None else Truth({"test": labels})
        self._judged: tuple[int, Judged | None] | None = None

    @property
    def truth(self) -> Truth:
        """What is known to be true, read when it is first asked for."""
        with self._lock:
            if self._truth is None:
                self._truth = own_truth(self.folder, self.names)
            return self._truth

    def facts(self) -> dict[str, Any]:
        """See `shapes.RunFacts`."""
        index = self.archive.now.index
        return {
            "name": self.folder.resolve().name,
            "n_items": index.n_items,
            "n_labels": len(self.names),
            "has_images": self._has_images,
            "version": __version__,
        }

    def labels(self, text: str, k: int) -> dict[str, Any]:
        """See `shapes.LabelList`."""
        return {"labels": [self._fact(name) for name in self.complete(text, k)], "total": len(self.names)}

    def search(self, view: View, asked: Asked, k: int, offset: int) -> dict[str, Any]:
        """See `shapes.SearchResult`."""
        page = view.search(asked.query, k, offset)
        return {
            "query": str(asked.query),
            "plain": asked.plain,
            "terms": [{"label": label, "wanted": wanted} for label, wanted in _terms(asked.query.terms)],
            "hits": [{"id": hit.id, "score": hit.score, "probabilities": hit.probabilities} for hit in page.hits],
            "more": page.more,
            "n_items": view.index.n_items,
            "generation": view.generation,
        }

    def nothing(self, view: View) -> dict[str, Any]:
        """Return what is found where nothing is asked for, see `shapes.SearchResult`."""
        found = {"query": "", "plain": True, "terms": [], "hits": [], "more": False}
        return {**found, "n_items": view.index.n_items, "generation": view.generation}

    def item(self, view: View, id: str) -> dict[str, Any]:
        """See `shapes.ItemFacts`."""
        if id not in view.index:
            raise Missing(f"there is no item {id!r:.120}")
        row = view.index.rows([id])[0]
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
            "has_image": self._has_image(view, id),
            "labels": listed,
            "left_out": len(found) - len(listed),
            "annotated": None if true is None else true[0],
        }

    def image(self, view: View, id: str) -> ImageFile:
        """Return the image file of an item, which the index must list."""
        file = self.pictures.allowed(view.path(id))
        found = file.stat()
        return ImageFile(file, found.st_mtime_ns, found.st_size)

    def picture(self, image: ImageFile, size: str) -> Picture:
        """Return an image file as a small JPEG picture."""
        return self.pictures.make(image.file, SIDES[size])

    def label(self, view: View, name: str) -> dict[str, Any]:
        """See `shapes.LabelPage`."""
        if name not in self._facts:
            raise Missing(f"there is no label {name!r:.120}")
        place = self.names.index(name)
        found = self._judged_in(view)
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

    def _has_image(self, view: View, id: str) -> bool:
        try:
            self.pictures.allowed(view.path(id))
        except NoPicture:
            return False
        return True

    def _judged_in(self, view: View) -> Judged | None:
        truth = self.truth
        with self._lock:
            if self._judged is None or self._judged[0] != view.generation:
                self._judged = view.generation, judged(truth, view)
            return self._judged[1]

    def _why_not(self) -> str:
        return self.truth.why or "What is true of the items in the index is not known here."


def _terms(terms: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Each label once, in order; one that is both wanted and not is shown as wanted."""
    found: dict[str, bool] = {}
    for label, wanted in terms:
        found[label] = found.get(label, False) or wanted
    return list(found.items())
