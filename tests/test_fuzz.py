"""Parsers on a hundred inputs each, and on every input that ever showed a fault; losses on a hundred cases."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from fuzz import kernels
from fuzz.campaign import attempt, fuzz, guarded
from fuzz.page import FOUND, PAGE, RECORD, kept, text
from fuzz.parsers import BUILD, Target
from steelyard.losses import BCE

EVERY = pytest.mark.parametrize("name", list(BUILD))


@EVERY
def test_any_input_is_read_or_refused(name: str, tmp_path: Path) -> None:
    record = fuzz(name, 1, 100, time.time() + 60, tmp_path)
    assert record["faults"] == {}
    assert record["inputs"] == 100
    assert record["answers"] > 2 or name == "history"  # which passes over what it cannot read


@EVERY
def test_what_showed_a_fault_is_read_or_refused(name: str, tmp_path: Path) -> None:
    target = BUILD[name](tmp_path)
    with guarded():
        for file in kept(name):
            assert attempt(target, file.read_bytes())[1] is None, file.name


def test_every_fault_that_is_kept_is_of_a_parser() -> None:
    assert sorted(file for name in BUILD for file in kept(name)) == FOUND != []


def test_the_page_is_that_of_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(json.loads(RECORD.read_text())), "run python -m fuzz.page"


@EVERY
def test_seeds_are_read(name: str, tmp_path: Path) -> None:
    """A parser that refuses everything would be tried on nothing."""
    target = BUILD[name](tmp_path)
    assert any(attempt(target, seed)[0] == "a value" for seed in target.seeds)


def _complain(text: str) -> None:
    raise ValueError(text)


def _forever(_: bytes) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (lambda content: {}["missing"], "KeyError"),
        (_forever, "hang"),
        (lambda content: _complain("one\nother"), "prolix"),
        (lambda content: _complain("x" * 3000), "prolix"),
        (lambda content: bytearray(1 << 40), "MemoryError"),
        (lambda content: content.decode("ascii"), "UnicodeDecodeError"),
    ],
)
def test_a_fault_is_seen(read: Callable[[bytes], Any], answer: str) -> None:
    with guarded():
        found, fault = attempt(Target((b"",), read, ValueError), b"\xff")
    assert found == answer
    assert fault is not None


def test_losses_are_those_of_formulas() -> None:
    record = kernels.run(5, 120, 1, "cpu", time.time() + 60)
    assert record["faults"] == []
    assert record["cases"] == 120


def test_a_loss_that_is_wrong_is_seen() -> None:
    variant = kernels.variant(Random(0), "cpu")._replace(
        loss="BCE", rule="", weight="", mix="hard", dtype=torch.float32, target_dtype=torch.int8, items=(33,)
    )
    made = kernels._make("BCE", torch.ones(variant.labels), 400, variant.reduction)
    generator = torch.Generator()
    assert (kernels.misses(variant, made, 33, generator) <= 1).all()
    wrong = made._replace(loss=BCE(1e-4, reduction=made.loss.reduction))
    assert (kernels.misses(variant, wrong, 33, generator) > 1).all()


def test_a_weight_that_is_a_number_has_all_its_digits() -> None:
    z, t = torch.tensor([[0.5]], dtype=torch.float64), torch.ones(1, 1)
    assert BCE()(z, t, 0.3).item() == pytest.approx(0.3 * np.logaddexp(0, -0.5), rel=1e-15)
