"""Answers of the application, made from a run, its index and its labels, and the newest state of these."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, final

import numpy as np

from steelyard import __version__
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import UNKNOWN, Labels
from steelyard.metrics.measures import number
from steelyard.run.locate import run_config
from steelyard.run.search import INDEX, index_command
from steelyard.search import Hit, Index
from steelyard.search.index import NO_LIKENESS
from steelyard.serve import label_page
from steelyard.serve.guards import Missing, Refusal
from steelyard.serve.pictures import Pictures
from steelyard.serve.query_form import Completion, query_of
from steelyard.serve.truth import IndexTruth, Truth, index_truth, own_truth

_LOOK_AGAIN = 1.0  # seconds
MOST_SECONDS = 10.0
"""A search that takes longer is broken off."""
MOST_OF_AN_ITEM = 200
"""Labels of an item that are listed, the likeliest."""


@final
class RunView:
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
        columns = zip(trained.names, trained.counts, trained.n_known, trained.thresholds, strict=True)
        facts = {
            name: {"positives": int(positives), "known": int(known), "threshold": number(threshold)}
            for name, positives, known, threshold in columns
        }
        unknown: dict[str, Any] = dict.fromkeys(("positives", "known", "threshold"))
        self._facts = {name: {"name": name, **facts.get(name, unknown)} for name in self.names}
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
        self._index_truth: list[IndexTruth | None] = []  # one, once it was asked for

    def over(self, index: Index) -> RunView:
        """Return the same run over a later generation of its index."""
        other = copy(self)
        other.index, other._lock, other._index_truth = index, threading.Lock(), []
        return other

    def warm_up(self, seconds: float = 10.0) -> None:
        """Search for frequent labels and make a picture, so that the first requests need not wait."""
        until = time.monotonic() + seconds
        with suppress(ValueError, TimeoutError, Refusal):  # a request for it gets the error
            for label in self.complete("", len(self.names)):
                if time.monotonic() > until:
                    break
                self.search("", [label], [], [], 1, 0)
            self.pictures.make(self.pictures.allowed(self.index.first_path()), "small")

    @property
    def version(self) -> tuple[str, int]:
        """The UUID and the generation of the index, on which every answer depends."""
        return self.index.uuid, self.index.generation

    @property
    def truth(self) -> Truth:
        """The known labels of items, read when first needed."""
        with self._lock:
            if self._truth is None:
                self._truth = own_truth(self.folder, self.names)
            return self._truth

    def facts(self, review: bool = False) -> dict[str, Any]:
        """See `api_types.RunFacts`; `review`: whether there are questions to answer."""
        return {
            "name": self.folder.resolve().name,
            "n_items": self.index.n_items,
            "n_labels": len(self.names),
            "has_images": self._has_images,
            "has_embeddings": self.index.n_numbers > 0,
            "version": __version__,
            "review": review,
        }

    def labels(self, text: str, k: int) -> dict[str, Any]:
        """See `api_types.LabelList`."""
        return {"labels": [self._fact(name) for name in self.complete(text, k)], "total": len(self.names)}

    def search(
        self,
        text: str,
        present: Sequence[str],
        absent: Sequence[str],
        limits: Sequence[str],
        k: int,
        offset: int,
        like: str = "",
    ) -> dict[str, Any]:
        """See `api_types.SearchResult` and `query_form.query_of`; `like` is the id of an item, or ""."""
        if like and (not self.index.n_numbers or like not in self.index):
            raise Refusal(NO_LIKENESS) if not self.index.n_numbers else Missing(f"there is no item {like!r:.120}")
        question, plain = query_of(self.names, text, present, absent, limits) or (None, True)
        hits: list[Hit] = []
        terms: dict[str, bool] = {}
        if question is not None or like:
            ranked = self.index.search(question, k + 1, offset, seconds=MOST_SECONDS, like=like or None)
            hits = [hit for hit in ranked if hit.score > 0]  # the query rules out the others
            for label, is_present in question.terms if question is not None else ():
                terms[label] = terms.get(label, False) or is_present
        return {
            "query": "" if question is None else str(question),
            "plain": plain,
            "terms": [{"label": label, "present": is_present} for label, is_present in terms.items()],
            "hits": [hit._asdict() for hit in hits[:k]],
            "more": len(hits) > k,
            "n_items": self.index.n_items,
            "index": self.index.uuid,
            "generation": self.index.generation,
        }

    def item(self, id: str) -> dict[str, Any]:
        """See `api_types.ItemFacts`."""
        if id not in self.index:
            raise Missing(f"there is no item {id!r:.120}")
        row = self.index.rows([id])[0]
        true = self.truth.of(id)
        order = np.argsort(-row, kind="stable").tolist()
        return {
            "id": id,
            "has_image": self._has_image(id),
            "labels": [
                {
                    "label": self.names[c],
                    "probability": float(row[c]),
                    "threshold": self._facts[self.names[c]]["threshold"],
                    "truth": None if true is None or true[1][c] == UNKNOWN else float(true[1][c]),
                }
                for c in order[:MOST_OF_AN_ITEM]
            ],
            "left_out": len(order[MOST_OF_AN_ITEM:]),
            "annotated": None if true is None else true[0],
        }

    def image(self, id: str) -> tuple[Path, int, int]:
        """Return the image file of an item, which the index must list, and a stamp that changes with its content."""
        try:
            listed = self.index.path(id)
        except ValueError:
            raise Missing("there is no such item") from None
        return self.pictures.stamped(listed)

    def label(self, name: str) -> dict[str, Any]:
        """See `api_types.LabelPage`."""
        if name not in self._facts:
            raise Missing(f"there is no label {name!r:.120}")
        column = self.names.index(name)
        truth = self._index_truth_now()
        training = self.truth.parts.get("training")
        return {
            **self._facts[name],
            "part": None if truth is None else truth.part,
            "note": truth.note if truth is not None else self._why_not(),
            **(label_page.NOT_MEASURED if truth is None else label_page.performance(column, truth)),
            "neighbours": [] if training is None else label_page.neighbours(column, training),
        }

    def data(self) -> dict[str, Any]:
        """See `api_types.DataPage`."""
        training = self.truth.parts.get("training")
        return {
            **label_page.frequencies([self._fact(name) for name in self.names]),
            "n_items": None if training is None else training.n_items,
            **label_page.co_occurrence(training),
            "note": "" if training is not None else self._why_not(),
        }

    def _fact(self, name: str) -> dict[str, Any]:
        return {key: self._facts[name][key] for key in ("name", "positives", "threshold")}

    def _has_image(self, id: str) -> bool:
        try:
            self.image(id)
        except Missing:
            return False
        return True

    def _index_truth_now(self) -> IndexTruth | None:
        truth = self.truth
        with self._lock:
            if not self._index_truth:
                self._index_truth.append(index_truth(truth, self.index))
            return self._index_truth[0]

    def _why_not(self) -> str:
        return self.truth.why or "What is true of the items in the index is not known here."


def images_of(run: str | os.PathLike[str]) -> str | None:
    """Return the folder of images that was named in training; None if there is none, or if it is the whole disk."""
    try:
        data = run_config(run).data
    except ValueError:
        return None
    folder = Path(data.images or data.path).absolute() if data.images or data.path else None
    if folder is None or not folder.exists():
        return None
    folder = folder if folder.is_dir() else folder.parent
    return None if folder == Path(folder.anchor) else str(folder)


@final
class Current:
    """The newest state of a run and its index; for the arguments see `make_app`.

    shown: which stays in use until a newer one can be shown whole.
    """

    def __init__(
        self,
        run_folder: str | os.PathLike[str],
        index: Index | str | os.PathLike[str] | None,
        labels: Labels | None,
        images: str | os.PathLike[str] | None,
    ) -> None:
        if images is not None and not Path(images).is_dir():
            raise ValueError(f"images is {os.fspath(images)!r}, which is not a folder: give the folder of the images")
        self._given = run_folder, labels, images
        RunFolder(run_folder).check_finished()
        if index is None and not Path(run_folder, INDEX).is_dir():
            command = index_command(run_folder, Path(run_folder, INDEX))
            raise ValueError(
                f"{os.fspath(run_folder)} has no index to search: make one with {command}, or give another with --index"
            )
        threads = max(1, (os.cpu_count() or 1) // 2)  # of one search: several are answered side by side
        opened = index if isinstance(index, Index) else Index.open(index or Path(run_folder, INDEX), threads)
        self.shown = RunView(run_folder, opened, labels, images)
        self._looked = time.monotonic()

    def overdue(self) -> float | None:
        """Return for how many seconds a new look has been due, None if it is not; one of several callers gets it."""
        now = time.monotonic()
        late = now - self._looked - _LOOK_AGAIN
        if late <= 0:
            return None
        self._looked = now
        return late

    def look(self) -> None:
        """Switch to the newest generation of the index; for a rebuilt index, read the run again too."""
        index = self.shown.index
        try:
            fresh = index.refreshed()
            if fresh is index:
                return
            run_folder, labels, images = self._given
            same = fresh.uuid == index.uuid
            self.shown = self.shown.over(fresh) if same else RunView(run_folder, fresh, labels, images)
        except (ValueError, OSError):  # it is being written, corrupt or gone: the open one stays in use
            return
