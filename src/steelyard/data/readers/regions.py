"""Questions about images with features of detected regions: two inputs per item, as LXMERT takes them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from steelyard._files import check_place, replacing
from steelyard.data.cache import stamp_of
from steelyard.data.files import DataError, PathLike, damaged, read_lines, require
from steelyard.data.readers.npz import read_array
from steelyard.data.readers.vqa import Questions, question_texts, vqa
from steelyard.labels import Labels
from steelyard.labels.ids import several

_FIELDS = (6, 10)  # of a line of a TSV file

PairSample: TypeAlias = tuple[tuple[Tensor, Tensor], Tensor, int]
"""((regions float32 (R, F), words int64 (T,)), target (L,), index)."""


@final
class WordTable:
    """Numbers for words: 0 means no word, 1 an unknown word; the table's words follow in their order.

    Args:
        words: distinct words in lower case.

    Examples:
        >>> words = sy.data.WordTable.of(["What colour is the cat?", "Is the dog brown?"], least=2)
        >>> words.words, len(words)
        (('is', 'the'), 4)
        >>> words.numbers("Is the cat here?", length=6).tolist()
        [2, 3, 1, 1, 0, 0]
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = several(words, "words")
        self._number = {word: i for i, word in enumerate(self.words, 2)}
        if len(self._number) != len(self.words):
            twice = next(word for word, n in Counter(self.words).items() if n > 1)
            raise ValueError(f"words holds {twice!r} twice: a word has one number, remove one of them")

    @classmethod
    def of(cls, texts: Iterable[str], least: int = 1) -> WordTable:
        """Return the table of all words that occur at least `least` times in `texts`, frequent ones first."""
        counts = Counter(word for text in texts for word in words_of(text))
        return cls(sorted((w for w, n in counts.items() if n >= least), key=lambda w: (-counts[w], w)))

    def __len__(self) -> int:
        """V: how many numbers there are, 0 and 1 included."""
        return len(self.words) + 2

    def numbers(self, text: str, length: int) -> NDArray[np.int64]:
        """Return the numbers of the first `length` words of `text`, 0 where it has fewer."""
        result = [self._number.get(word, 1) for word in words_of(text)[:length]]
        return np.array(result + [0] * (length - len(result)), np.int64)


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case: parts of letters, digits and apostrophes."""
    return re.findall(r"[\w']+", text.lower())


@final
class RegionDataset(Dataset[PairSample]):
    """Questions with the features of image regions: item i is ((regions, words), target, i).

    Args:
        questions: questions from `vqa`.
        features: `.npy` file (M, R, F) of floats, memory-mapped: R regions of each of M images, padded with zeros.
        image_ids: COCO id of each image in the file, (M,).
        words: table of the training questions, `WordTable.of(train.questions)`.
        length: T, number of words read from each question.

    Examples:
        >>> from steelyard.data.readers.vqa import Questions
        >>> questions = Questions(["Is it red?"], np.array([9]), sy.Labels([[1, 0]], ["yes", "no"]))
        >>> np.save("regions.npy", np.ones((1, 2, 3), np.float16))
        >>> data = sy.data.RegionDataset(questions, "regions.npy", [9], sy.data.WordTable(["red"]), length=4)
        >>> (regions, words), target, index = data[0]
        >>> regions.shape, words.tolist()
        (torch.Size([2, 3]), [1, 1, 2, 0])
    """

    def __init__(
        self,
        questions: Questions,
        features: PathLike,
        image_ids: Sequence[int] | NDArray[np.int64],
        words: WordTable,
        length: int = 20,
    ) -> None:
        if length < 1:
            raise ValueError(f"length is {length}: at least one word of a question must be read")
        self.questions, self.words, self.length = questions, words, length
        self.path = Path(features)
        self._features: NDArray[Any] = read_array(features)
        ids = np.asarray(image_ids, np.int64)
        shape = self._features.shape
        if len(shape) != 3 or not shape[0] or self._features.dtype.kind != "f" or ids.shape != shape[:1]:
            shapes = f"shape {shape} of {self._features.dtype} and image_ids {ids.shape}"
            raise DataError(f"{features} has {shapes}: give floats (images, regions, features) and one id per image")
        order = np.argsort(ids, kind="stable")
        if len(twice := np.flatnonzero(ids[order][1:] == ids[order][:-1])):
            raise DataError(f"image_ids holds {ids[order][twice[0]]} twice: give each image once")
        place = np.minimum(np.searchsorted(ids[order], questions.image_ids), len(ids) - 1)
        self._row = order[place]
        if len(missing := np.flatnonzero(ids[self._row] != questions.image_ids)):
            image, asks = questions.image_ids[missing[0]], questions.labels.ids[int(missing[0])]
            which = f"image {image}, which question {asks} asks about"
            raise DataError(f"{features} has no features of {which}: add it, or leave the question out")

    @property
    def labels(self) -> Labels:
        """The labels of the questions."""
        return self.questions.labels

    @labels.setter
    def labels(self, labels: Labels) -> None:
        self.questions = Questions(self.questions.questions, self.questions.image_ids, labels)

    @property
    def n_words(self) -> int:
        """V, how many numbers a word may have."""
        return len(self.words)

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> PairSample:
        (text, _), target, i = self.questions[index]
        regions = torch.from_numpy(self._features[self._row[i]].astype(np.float32))
        return (regions, torch.from_numpy(self.words.numbers(text, self.length))), target, i

    def fingerprint(self, index: NDArray[np.int64]) -> bytes:
        """Return a hash of the inputs at `index`: their questions, their images, and path and stamp of the file."""
        digest = hashlib.sha256(repr((str(Path(self.path).absolute()), stamp_of(str(self.path)), self.length)).encode())
        digest.update("\0".join(self.words.words).encode())
        digest.update(self._row[index].tobytes())
        for i in index.tolist():
            digest.update(b"\0" + self.questions.questions[i].encode())
        return digest.digest()


def vqa_regions(root: PathLike, split: str, answers: int | Sequence[str] = 3129) -> RegionDataset:
    """Return VQA v2 with the features of image regions that lie beside its questions.

    `regions/{split}.npy` holds them, (M, R, F), `regions/{split}_ids.npy` the COCO number of each of the M images, and
    `regions/words.txt`, if it is there, the words that have numbers, one per line; else they are those of the training
    questions, whichever split is read, so that a word always has the same number.

    Arguments: `root`, `split`, `answers`: see `vqa`.
    """
    questions = vqa(root, split, answers)
    folder = Path(root) / "regions"
    file = folder / f"{split}_ids.npy"
    ids = read_array(file)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(f"{file} holds no whole numbers (M,): save the COCO number of each image by numpy.save")
    if (listed := folder / "words.txt").is_file():
        words = WordTable([line.lower() for line in read_lines(listed) if line])
    else:
        words = WordTable.of(questions.questions if split == "train" else question_texts(root, "train"))
    return RegionDataset(questions, folder / f"{split}.npy", ids, words)


# ---- region features as the authors of their detectors publish them


def convert_regions(
    tsv: PathLike | Sequence[PathLike],
    features: PathLike,
    image_ids: PathLike,
    regions: int = 36,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, int, int]:
    r"""Convert region features from TSV files to a `.npy` file (M, R, F), float16, and one of COCO ids (M,).

    Each line describes one image in 6 fields (bottom-up attention) or 10 (LXMERT): first its number, or a name that
    ends in it; last the number of boxes, the boxes, and the features, (boxes, F) float32 in base64.

    Args:
        tsv: the TSV file or files; all must have the same F and no image twice.
        features, image_ids: `.npy` files to write.
        regions: R; further boxes are dropped and missing ones are padded with zeros.
        progress: called with the number of images after each.

    Returns:
        The shape (M, R, F).

    Examples:
        >>> import base64
        >>> from pathlib import Path
        >>> numbers = base64.b64encode(np.ones((2, 3), np.float32).tobytes()).decode()
        >>> _ = Path("obj.tsv").write_text("\t".join(["9", "640", "480", "2", "", numbers]))
        >>> sy.data.convert_regions("obj.tsv", "regions.npy", "image_ids.npy", regions=4)
        (1, 4, 3)
    """
    if regions < 1:
        raise ValueError(f"regions is {regions}: at least one of an image must be kept")
    files = [require(file) for file in ([tsv] if isinstance(tsv, str | Path) else tsv)]
    for place in (features, image_ids):
        check_place(place)
    ids: dict[int, None] = {}
    shape = (0, regions, 0)
    with replacing(features) as partial, partial.open("wb") as out:
        for file in files:
            with file.open(encoding="ascii", errors="replace") as lines:
                for i, line in enumerate(lines, 1):
                    number, rows = _read(line, f"{file}, line {i}")
                    if not ids:
                        shape = (0, regions, rows.shape[1])
                        _write_header(out, shape)
                    if (width := rows.shape[1]) != shape[2]:
                        raise DataError(
                            f"{file}, line {i}: {width} features, not {shape[2]} as the first: take one set"
                        )
                    if number in ids:
                        raise DataError(f"{file}, line {i}: image {number} occurs twice: give each image once")
                    ids[number] = None
                    kept = np.zeros(shape[1:], np.float16)
                    kept[: len(rows)] = rows[:regions]
                    out.write(kept.tobytes())
                    if progress is not None:
                        progress(len(ids))
        if not ids:
            raise ValueError("tsv holds no file: give one at least")
        shape = (len(ids), *shape[1:])
        out.seek(0)
        _write_header(out, shape)
    with replacing(image_ids) as partial, partial.open("wb") as out:
        np.save(out, np.array(list(ids), np.int64))
    return shape


def _read(line: str, where: str) -> tuple[int, NDArray[np.float32]]:
    """Return the number of an image and the features of its boxes."""
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) not in _FIELDS:
        raise DataError(
            f"{where} has {len(fields)} fields, not 6 or 10: it is not a TSV of region features, or cut off"
        )
    name, boxes, content = fields[0], fields[-3], fields[-1]
    number = re.search(r"\d+$", name)
    if number is None or not re.fullmatch(r"[1-9]\d{0,5}", boxes):
        raise damaged(where, f"image {name!r:.60} with {boxes!r:.20} boxes, not whole numbers")
    try:
        rows = np.frombuffer(base64.b64decode(content, validate=True), np.dtype("<f4"))
    except (binascii.Error, ValueError):
        raise damaged(where, "the features are not base64 of float32") from None
    if not rows.size or rows.size % int(boxes):
        raise damaged(where, f"{rows.size} numbers are not the features of {boxes} boxes")
    if not (np.abs(rows) <= np.finfo(np.float16).max).all():
        raise damaged(where, "a feature is not finite, or beyond float16")
    return int(number.group()), rows.reshape(int(boxes), -1)


def _write_header(out: BinaryIO, shape: tuple[int, int, int]) -> None:
    """Write the header of a .npy file of float16; numpy leaves space in it for any number of images."""
    np.lib.format.write_array_header_1_0(out, {"descr": "<f2", "fortran_order": False, "shape": shape})
