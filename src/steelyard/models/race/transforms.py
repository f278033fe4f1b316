"""Transforms of features before a head sees them: standardised, square roots, tf-idf, reduced, Nyström's kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steelyard.data.sparse import FeatureMatrix, SparseRows


class Transform(nn.Module):
    """A map of features (B, F) → (B, D) that is fitted once to training features, without labels; this one: none.

    Transforms that leave 0 as it is (none, square roots, tf-idf) take `SparseRows` too, and return them.
    """

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.n_outputs = n_outputs

    def fit(self, x: Any, seed: int = 0) -> None:
        """Fit to training features (N, F)."""

    def forward(self, x: Any) -> Any:
        """Return transformed features."""
        return x


class Standardised(Transform):
    """(x − mean) / deviation of every feature; a constant feature is only centred."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, n_features: int) -> None:
        super().__init__(n_features)
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("deviation", torch.ones(n_features))

    def fit(self, x: Tensor, seed: int = 0) -> None:
        """Take mean and deviation of the features."""
        mean = x.mean(0, dtype=torch.float64)
        deviation = (x - mean.to(x.dtype)).square().mean(0, dtype=torch.float64).sqrt()
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(deviation > 1e-6 * mean.abs().clamp_min(1e-30), deviation, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return standardised features."""
        return (x - self.mean) / self.deviation


class SquareRoot(Transform):
    """√x / ‖√x‖ of features that are at least 0, which tames counts; Hellinger's distance becomes Euclid's."""

    def forward(self, x: FeatureMatrix) -> Any:
        """Return roots of unit norm."""
        return _unit(x.clamp_min(0).sqrt())


class TfIdfTransform(Transform):
    """x · idf / ‖x · idf‖ of features that are at least 0, idf = 1 + log((1 + N)/(1 + items with x > 0))."""

    idf: Tensor

    def __init__(self, n_features: int) -> None:
        super().__init__(n_features)
        self.register_buffer("idf", torch.ones(n_features))

    def fit(self, x: FeatureMatrix, seed: int = 0) -> None:
        """Count in how many items each feature occurs."""
        occurs = x.occurrences() if isinstance(x, SparseRows) else (x > 0).sum(0).double()
        self.idf.copy_(1 + torch.log((1 + len(x)) / (1 + occurs)))

    def forward(self, x: FeatureMatrix) -> Any:
        """Return weighted features of unit norm."""
        return _unit(x.clamp_min(0) * self.idf)


class Reduced(Transform):
    """x · V, the projections of features on their first principal directions about 0 (latent semantic analysis).

    Args:
        n_features: F.
        n_directions: how many directions are kept.
    """

    directions: Tensor

    def __init__(self, n_features: int, n_directions: int = 256) -> None:
        super().__init__(min(n_directions, n_features))
        self.register_buffer("directions", torch.zeros(n_features, self.n_outputs))

    def fit(self, x: FeatureMatrix, seed: int = 0) -> None:
        """Find the directions by randomised iteration."""
        from sklearn.utils.extmath import randomized_svd

        cells = x.cells if isinstance(x, SparseRows) else x.cpu().numpy()
        result = randomized_svd(cells, min(self.n_outputs, *cells.shape), n_iter=4, random_state=seed)[2]
        self.directions.zero_()
        self.directions[:, : len(result)] = torch.from_numpy(result.T.copy()).to(self.directions)

    def forward(self, x: FeatureMatrix) -> Tensor:
        """Return projections (B, D)."""
        nothing = self.directions.new_zeros(self.n_outputs)
        return x.affine(self.directions, nothing) if isinstance(x, SparseRows) else x @ self.directions


class Nystroem(Transform):
    """Features whose inner products are those of a kernel of the distance d of two items, approximately.

        φ(x) = k(x, landmarks) · K^(−½), K = k(landmarks, landmarks)

    A linear head on φ is a kernel machine (Williams and Seeger 2001). k is exp(−d²/(2 s²)) ("gauss") or exp(−d/s)
    ("laplace"); s is `scale` times the median distance of two items.

    Args:
        n_features: F.
        kernel: "gauss" or "laplace".
        n_landmarks: training items that stand for all of them.
        scale: of the kernel's width.
    """

    landmarks: Tensor
    root: Tensor
    width: Tensor

    def __init__(self, n_features: int, kernel: str, n_landmarks: int, scale: float) -> None:
        super().__init__(n_landmarks)
        self.kernel, self.scale = kernel, scale
        self.register_buffer("landmarks", torch.zeros(n_landmarks, n_features))
        self.register_buffer("root", torch.eye(n_landmarks))
        self.register_buffer("width", torch.ones(()))

    def fit(self, x: Tensor, seed: int = 0) -> None:
        """Choose landmarks among the items, and the width of the kernel."""
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(x), generator=generator)[: self.n_outputs].sort().values
        self.landmarks.copy_(x[chosen.to(x.device)])
        some = self.landmarks[:1000]
        square = _square_distances(some, some)
        apart = square[square > 1e-6 * square.amax()]
        self.width.fill_(self.scale * (float(apart.median().sqrt()) if len(apart) else 1.0))
        values, vectors = torch.linalg.eigh(self._kernel(self.landmarks).double())
        inverse = torch.where(values > 1e-6 * values[-1], values.clamp_min(1e-12).rsqrt(), 0.0)
        self.root.copy_((vectors * inverse) @ vectors.T)

    def _kernel(self, x: Tensor) -> Tensor:
        square = _square_distances(x, self.landmarks) / self.width.square()
        return torch.exp(-square / 2 if self.kernel == "gauss" else -square.sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(x)."""
        return self._kernel(x) @ self.root


class Chain(Transform):
    """A simple transform, then Nyström's features of it."""

    def __init__(self, first: Transform, second: Nystroem) -> None:
        super().__init__(second.n_outputs)
        self.first, self.second = first, second

    def fit(self, x: Tensor, seed: int = 0) -> None:
        """Fit one after the other."""
        self.first.fit(x, seed)
        self.second.fit(self.first(x), seed)

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(first(x))."""
        features: Tensor = self.second(self.first(x))
        return features


SIMPLE = {"none": Transform, "standardise": Standardised, "sqrt": SquareRoot, "tfidf": TfIdfTransform, "svd": Reduced}


def make_transform(kind: str, n_features: int, kernel: str = "", n_landmarks: int = 0, scale: float = 1.0) -> Transform:
    """Return a transform, not fitted: one of `SIMPLE`, and with a kernel Nyström's features of that."""
    simple = SIMPLE[kind](n_features)
    return Chain(simple, Nystroem(simple.n_outputs, kernel, n_landmarks, scale)) if kernel else simple


def _square_distances(x: Tensor, y: Tensor) -> Tensor:
    square = x.square().sum(1)[:, None] - 2 * (x @ y.T) + y.square().sum(1)
    return square.clamp_min(0)


def _unit(x: Any) -> Any:
    return x.unit() if isinstance(x, SparseRows) else x / x.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)
