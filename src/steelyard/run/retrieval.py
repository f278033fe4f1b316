"""The command evaluate --retrieval: compare runs by the mAP of searching with them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from json import dumps
from pathlib import Path

from steelyard.report import inspection_page, retrieval
from steelyard.report.terminal import console_of, plain, say
from steelyard.run.command import Other, judged_on
from steelyard.run.run_report import evaluated_of


def compare(runs: Sequence[str], other: Other, deploy_prior: str | None, html: str | None, as_json: bool) -> None:
    """Print the mAP of searching with runs by the number of terms of a query, side by side.

    Args:
        runs: folders of finished runs with the same labels.
        other: items for all of them; by default the test or validation items of each, which must be the same.
        deploy_prior: see `steelyard evaluate`.
        html: file for a page with the table and a plot, or None.
        as_json: whether JSON is printed.
    """
    if html is not None:
        inspection_page.check(html)
    if twice := [run for run in runs if runs.count(run) > 1]:
        raise ValueError(f"{twice[0]} is given more than once: give every run once")
    candidates, on = {}, set()
    for name, run in zip(_names(runs), runs, strict=True):
        target = judged_on(run, other, deploy_prior)
        judged = target.judged
        if judged.unreadable:
            say(console_of(stderr=True), f"Beware: of {name}, {plain(judged.unreadable)}.", "yellow")
        if not judged.probability_model.has_probability:
            raise ValueError(
                f"{name} has no probabilities to search with, since {judged.probability_model.why}: run "
                f"{shlex.join(['steelyard', 'calibrate', run])} first"
            )
        candidates[name] = evaluated_of(target.trained, judged, target.settings)
        on.add(target.name)
    study = retrieval.study(candidates)
    if html is not None:
        retrieval.write_study(study, html)
    if as_json:
        print(dumps({**study.as_dict(), "on": sorted(on)}, ensure_ascii=False, allow_nan=False))
        return
    console = console_of()
    retrieval.show(study, console)
    if html is not None:
        say(console, f"\nA page with the plot is in {plain(html)}.")


def _names(runs: Sequence[str]) -> list[str]:
    """Return the names of runs: those of their folders where they differ, else as they were typed."""
    short = [Path(run).absolute().name for run in runs]
    return short if len(set(short)) == len(runs) else list(runs)
