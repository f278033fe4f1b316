"""OLTR (Liu et al., 2019), adapted to many labels per item: a memory of class centroids supports the features."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.balance.processes import summed


@final
class OLTRHead(nn.Module):
    """z = s·cos-like(v) + b of the meta-embedding v = (f + e ⊙ m) · r/γ.

        m = softmax(H f)ᵀ C      the memory: centroids C (L, F), by weights guessed from the feature
        e = tanh(S f)            the concept selector
        γ = min_c ‖f − C_c‖      r/γ is the reachability; r is 1 in the formula, 10 in the authors' code
        z_c = s · v/(1 + ‖v‖) · w_c/‖w_c‖ + b_c,  s = 16

    v/(1 + ‖v‖) is computed as u/(γ/r + ‖u‖) with u = f + e ⊙ m, which is the same and needs no guard at γ = 0. Adapted
    to many labels: a centroid is the mean feature of the items that have the label, and labels have biases b, since
    sigmoids, unlike softmax, must know how rare a label is.

    The memory changes between epochs only. In every training step `update_centroids(features, targets)` adds to the
    sums of the epoch, and `start_epoch()` makes centroids of them; everything lies in buffers, so a run resumed from
    its state goes on exactly. While no centroid is there (the first epoch) m = 0 and γ = r; a label without one takes
    no part in m and γ.

    n_features: F; `n_labels`: L; `dropout`: of f; `reachability`: r. H and S start as torch's linear layers do, w
    uniform within ±1/√F.
    """

    scale = 16.0
    centroids: Tensor
    seen: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, n_features: int, n_labels: int, dropout: float, reachability: float = 1.0) -> None:
        super().__init__()
        self.reachability = reachability
        self.hallucinate = nn.Linear(n_features, n_labels)
        self.select = nn.Linear(n_features, n_features)
        self.weight = nn.Parameter(torch.empty(n_labels, n_features).uniform_(-(n_features**-0.5), n_features**-0.5))
        self.bias = nn.Parameter(torch.zeros(n_labels))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("centroids", torch.zeros(n_labels, n_features))
        self.register_buffer("seen", torch.zeros(n_labels, dtype=torch.bool))
        self.register_buffer("sums", torch.zeros(n_labels, n_features))
        self.register_buffer("counts", torch.zeros(n_labels))

    @torch.no_grad()
    def start_at(self, bias: Tensor) -> None:
        """Start with `bias` (L,); the weights have unit length whatever they are, so logits spread about it."""
        self.bias.copy_(bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, L)."""
        f = self.dropout(features)
        some = self.seen.any()
        weights = self.hallucinate(f).masked_fill(~self.seen & some, -torch.inf).softmax(1)
        u = f + torch.tanh(self.select(f)) * (weights.to(f.dtype) @ self.centroids.to(f.dtype))
        wide = torch.promote_types(f.dtype, torch.float32)
        distance = torch.linalg.vector_norm(f.to(wide) - self.centroids[self._nearest(f)], dim=1, keepdim=True)
        apart = torch.where(some, distance / self.reachability, 1.0)
        below = apart + torch.linalg.vector_norm(u.to(wide), dim=1, keepdim=True)
        v = u / torch.where(below > 0, below, 1.0)
        return self.scale * F.linear(v, F.normalize(self.weight)) + self.bias

    @torch.no_grad()
    def _nearest(self, f: Tensor) -> Tensor:
        """The label (B,) whose centroid is nearest; ‖f − C‖² without ‖f‖², which is the same for all."""
        with torch.autocast(f.device.type, enabled=False):
            c = self.centroids
            apart = c.square().sum(1) - 2 * (f.to(c.dtype) @ c.T)
            return apart.masked_fill(~self.seen, torch.inf).argmin(1)

    @torch.no_grad()
    def update_centroids(self, features: Tensor, targets: Tensor) -> None:
        """Add a batch to the sums of the epoch: features (B, F), targets (B, L); positives are targets ≥ .5.

        Under several processes every one of them must call it: the sums are those of the whole batch.
        """
        with torch.autocast(features.device.type, enabled=False):
            has = (targets >= 0.5).float()
            self.sums += summed(has.T @ features.float())
            self.counts += summed(has.sum(0))

    @torch.no_grad()
    def start_epoch(self) -> None:
        """Make centroids of the sums; a label that no item had keeps the centroid it has."""
        met = self.counts > 0
        means = self.sums / torch.where(met, self.counts, 1.0)[:, None]
        self.centroids.copy_(torch.where(met[:, None], means, self.centroids))
        self.seen |= met
        self.sums.zero_()
        self.counts.zero_()


@final
class ModulatedAttention(nn.Module):
    """a = x + M(x) ⊙ S(x) on maps x (B, K, h, w): self-attention over places S, modulated place by place by M.

        S(x) = Q · Σ_p softmax_p(θ(x)·φ(x_p)) g(x_p)      θ, φ, g: 1×1 convolutions to K/2 channels, Q back to K
        M(x) = softmax over places of a 1×1 convolution to one channel

    OLTR's M is a full layer from all places to all places, which ties it to one size of map; the 1×1 convolution does
    not. Q starts at zero: the attention begins as nothing.

    channels: K.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(1, channels // 2)
        self.query, self.key, self.value = (nn.Conv2d(channels, inner, 1) for _ in range(3))
        self.back = nn.Conv2d(inner, channels, 1)
        self.where = nn.Conv2d(channels, 1, 1)
        for parameter in self.back.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of the shape of `x`."""
        parts = (part(x).flatten(2).transpose(1, 2) for part in (self.query, self.key, self.value))
        query, key, value = (part[:, None] for part in parts)  # one head, which ONNX wants to see
        attended = F.scaled_dot_product_attention(query, key, value, scale=1.0)[:, 0]
        context: Tensor = self.back(attended.transpose(1, 2).unflatten(2, x.shape[2:]))
        modulation = self.where(x).flatten(2).softmax(2).unflatten(2, x.shape[2:])
        return torch.addcmul(x, modulation, context)
