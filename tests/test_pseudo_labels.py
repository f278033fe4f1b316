"""The store of pseudo-labels: files and mistakes; epochs, restarts and resets are in test_state_machines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from steelyard.balance import PseudoLabels

N, L = 12, 5
ALL = torch.arange(N)
STEP = 0.5 / 254 + 1e-6


def table(seed: int, n: int = N) -> torch.Tensor:
    return torch.rand(n, L, generator=torch.Generator().manual_seed(seed))


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a - b).abs() <= STEP).all())


def test_starts_at_one_half(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path / "new" / "folder", N, L)
    store.start_epoch(1)
    got = store.read(ALL)
    assert got.dtype == torch.float32
    assert (got == 0.5).all()


def test_two_stores_on_the_same_files_see_each_other(tmp_path: Path) -> None:
    """As two processes, each writing its own items."""
    a = PseudoLabels(tmp_path, N, L)
    b = PseudoLabels(tmp_path, N, L)
    for store in (a, b):
        store.start_epoch(1)
    a.write(ALL[::2], table(1)[::2])
    b.write(ALL[1::2], table(1)[1::2])
    for store in (a, b):
        store.start_epoch(2)
        assert near(store.read(ALL), table(1))


def test_ends_and_half_are_exact(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path, 1, 3)
    store.start_epoch(1)
    store.write(torch.tensor([0]), torch.tensor([[0.0, 0.5, 1.0]]))
    store.start_epoch(2)
    assert store.read(torch.tensor([0])).tolist() == [[0.0, 0.5, 1.0]]


def test_one_byte_a_cell(tmp_path: Path) -> None:
    PseudoLabels(tmp_path, 2000, 300).flush()
    size = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
    assert size < 2.2 * 2000 * 300 + 10_000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_predictions_of_any_float(tmp_path: Path, dtype: torch.dtype) -> None:
    store = PseudoLabels(tmp_path, N, L)
    store.start_epoch(1)
    given = table(1).to(dtype).requires_grad_()
    store.write(ALL, given)
    store.start_epoch(2)
    assert near(store.read(ALL), given.detach().float())


@pytest.mark.parametrize("note", [b"", b'{"form', b"\xff\xfe{"])
def test_a_damaged_note_is_written_anew(tmp_path: Path, note: bytes) -> None:
    store = PseudoLabels(tmp_path, N, L)
    store.write(ALL, table(1))
    store.flush()
    (tmp_path / "pseudo_labels.json").write_bytes(note)
    again = PseudoLabels(tmp_path, N, L)
    again.start_epoch(2)
    assert near(again.read(ALL), table(1))
    PseudoLabels(tmp_path, N, L)
    (tmp_path / "pseudo_labels.json").write_bytes(note)
    with pytest.raises(ValueError, match=r"values-0\.i8 is missing or not 48 bytes long"):
        PseudoLabels(tmp_path, N, L - 1)


MISTAKES = {
    "other n_items": (lambda store, path: PseudoLabels(path, N + 1, L), ("13", "12")),
    "other n_labels": (lambda store, path: PseudoLabels(path, N, L + 1), ("6", "5")),
    "half an item": (lambda store, path: PseudoLabels(path / "b", 2.5, L), ("n_items is 2.5", "a whole number")),
    "no items": (lambda store, path: PseudoLabels(path / "b", 0, L), ("n_items", "0")),
    "labels below 0": (lambda store, path: PseudoLabels(path / "b", N, -2), ("n_labels", "-2")),
    "feedback": (lambda store, path: PseudoLabels(path / "b", N, L, feedback="links"), ("feedback", "links")),
    "read beyond": (lambda store, path: store.read(torch.tensor([N])), ("index", "12")),
    "read below": (lambda store, path: store.read(torch.tensor([-1])), ("index", "-1")),
    "write beyond": (lambda store, path: store.write(torch.tensor([N]), table(1, 1)), ("index", "12")),
    "write shape": (lambda store, path: store.write(ALL, table(1)[:3]), ("probabilities", "(3, 5)")),
    "write logits": (lambda store, path: store.write(ALL, table(1) + 3), ("probabilities", "3.")),
    "write nan": (lambda store, path: store.write(ALL, table(1) * float("nan")), ("probabilities", "nan")),
    "epoch 0": (lambda store, path: store.start_epoch(0), ("epoch", "0")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(tmp_path: Path, name: str) -> None:
    store = PseudoLabels(tmp_path, N, L)
    store.start_epoch(1)
    call, fragments = MISTAKES[name]
    with pytest.raises(ValueError) as caught:
        call(store, tmp_path)
    assert "\n" not in str(caught.value)
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)
    assert (store.read(ALL) == 0.5).all()


def test_what_was_held_and_not_flushed_is_lost(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path, N, L)
    store.start_epoch(1)
    store.hold_on(torch.device("cpu"))
    store.write(ALL, table(1))
    store.let_go()
    store.start_epoch(2)
    assert (store.read(ALL) == 0.5).all()


def test_only_the_epoch_written_last_and_the_next_can_be_taken_up(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path, N, L)
    for epoch in (1, 2, 3):
        store.start_epoch(epoch)
        store.write(ALL, table(epoch))
    for epoch in (3, 4):
        store.check_continues(epoch)
    for epoch in (2, 5):
        with pytest.raises(ValueError, match=f"holds pseudo-labels of epoch 3, and those that epoch {epoch} reads"):
            store.check_continues(epoch)
