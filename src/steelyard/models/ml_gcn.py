"""ML-GCN (Chen et al., 2019): the classifiers of the labels come from a graph of labels that occur together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.data.files import DataError, PathLike, require


def label_graph(conditional: NDArray[np.float64], threshold: float = 0.4, share: float = 0.2) -> NDArray[np.float64]:
    """Return the weights (L, L) with which a label takes part in another's classifier; every row sums to 1.

        label j ≠ i is a neighbour of i where p(j|i) ≥ threshold;
        row i gives its neighbours `share` in equal parts and itself the rest, or itself all where it has none

    conditional: p(i|j) as [i, j], as `Labels.conditional` gives it; where nothing is known (NaN) there is no edge.
    """
    edges = np.nan_to_num(conditional.T, nan=0.0) >= threshold
    np.fill_diagonal(edges, False)
    neighbours = edges.sum(1, keepdims=True)
    graph: NDArray[np.float64] = np.divide(share * edges, neighbours, out=np.zeros(edges.shape), where=neighbours > 0)
    np.fill_diagonal(graph, np.where(neighbours[:, 0] > 0, 1 - share, 1.0))
    return graph


@final
class MLGCNHead(nn.Module):
    """z = dropout(f) · (Â LeakyReLU(Â E V) W)ᵀ + b, two graph convolutions over label embeddings E (L, D).

    The authors have no b: it is there where it starts at the labels' frequencies (`model.bias` is "prior").

    Â is `label_graph`; V (D, width) and W (width, F) are drawn uniformly within ±1/√columns, as graph convolutions
    are by their authors; the slope of LeakyReLU is .2.

    embeddings: (L, D), word vectors or the identity; `graph` (L, L): Â; both are kept with the weights and do not
    change; `width`: 256 in the distribution-balanced loss's comparison; `has_bias`: whether there is b.
    """

    embeddings: Tensor
    graph: Tensor

    def __init__(
        self, n_features: int, embeddings: Tensor, graph: Tensor, width: int, dropout: float, has_bias: bool
    ) -> None:
        super().__init__()
        self.register_buffer("embeddings", embeddings.float())
        self.register_buffer("graph", graph.float())
        self.first = nn.Parameter(torch.empty(embeddings.shape[1], width).uniform_(-(width**-0.5), width**-0.5))
        self.second = nn.Parameter(torch.empty(width, n_features).uniform_(-(n_features**-0.5), n_features**-0.5))
        self.bias = nn.Parameter(torch.zeros(len(embeddings))) if has_bias else None
        self.dropout = nn.Dropout(dropout)

    @torch.no_grad()
    def start_at(self, bias: Tensor) -> None:
        """Start with the logits `bias` (L,) for every item."""
        if self.bias is None:
            raise ValueError("this head was made without biases: set model.bias to prior")
        self.second.zero_()
        self.bias.copy_(bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, L)."""
        hidden = F.leaky_relu(self.graph @ (self.embeddings @ self.first), 0.2)
        classifiers = self.graph @ (hidden @ self.second)
        return F.linear(self.dropout(features), classifiers, self.bias)


def label_vectors(path: PathLike, names: Sequence[str]) -> NDArray[np.float32]:
    """Return one vector per label, (L, D): that of its name, or the mean of those of the name's words.

    A line of the file is a word and its D numbers, between spaces. Upper and lower case are the same; a line whose
    word is the whole name, spaces written as `_` or `-`, wins over the words. Of several lines for one word the first
    counts. Words are parts of letters and digits: "traffic light" is traffic and light. A label none of whose words
    is in the file is an error.
    """
    wholes, parts = [], []
    for name in names:
        text = name.strip().lower()
        parts.append(re.findall(r"[^\W_]+", text))
        wholes.append([text, "_".join(parts[-1]), "-".join(parts[-1])])
    vectors = _read(path, {word for words in (*wholes, *parts) for word in words})
    rows = []
    for name, whole, words in zip(names, wholes, parts, strict=True):
        word_vectors = [vectors[word] for word in whole if word in vectors][:1]
        word_vectors = word_vectors or [vectors[word] for word in words if word in vectors]
        if not word_vectors:
            raise DataError(f"{path} has no vector for a word of the label {name!r}: add a line that begins with it")
        rows.append(np.mean(word_vectors, 0))
    return np.stack(rows).astype(np.float32)


def _read(path: PathLike, words: set[str]) -> dict[str, NDArray[np.float64]]:
    """Return the vectors of `words`; other lines are passed over unread."""
    vectors: dict[str, NDArray[np.float64]] = {}
    width = 0
    with require(path).open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            word, _, rest = line.partition(" ")
            word = word.lower()
            if word not in words or word in vectors:
                continue
            try:
                vector = np.array(rest.split(), np.float64)
            except ValueError:
                vector = np.empty(0)
            width = width or len(vector)
            if len(vector) != width or not width or not np.isfinite(vector).all():
                raise DataError(f"{path}: line {number} does not hold {width or 'any'} numbers after {word!r}: fix it")
            vectors[word] = vector
    return vectors
