"""What is shown now: a run and its index, followed while others write the index or train the run again."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import final

from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.run.finding import INDEX, index_command
from steelyard.search import Index
from steelyard.serve.shown import Shown

_LOOK_AGAIN = 1.0  # seconds


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
        self.shown = Shown(run_folder, opened, labels, images)
        self._looked = time.monotonic()

    def overdue(self) -> float | None:
        """Return for how many seconds it has been time to look again, None before; one of several callers is told."""
        now = time.monotonic()
        late = now - self._looked - _LOOK_AGAIN
        if late <= 0:
            return None
        self._looked = now
        return late

    def look(self) -> None:
        """Go over to the newest generation of the index; to a new index, with the run as it is then."""
        index = self.shown.index
        try:
            fresh = index.refreshed()
            if fresh is index:
                return
            run_folder, labels, images = self._given
            same = fresh.uuid == index.uuid
            self.shown = self.shown.over(fresh) if same else Shown(run_folder, fresh, labels, images)
        except (ValueError, OSError):  # it is being written, corrupt or gone: what is open stays in use
            return
