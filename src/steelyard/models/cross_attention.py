"""Two inputs at once, in LXMERT's style: regions of an image and words of a question that attend to each other."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from steelyard.models.backbone import Backbone


class _Attention(nn.Module):
    """x + attention(norm(x) over norm(y)): `y` is `x` itself, or the other input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor, y: Tensor, absent: Tensor) -> Tensor:
        keys = self.norm(y)
        asked = keys if y is x else self.norm(x)
        added: Tensor = self.attention(asked, keys, keys, key_padding_mask=absent, need_weights=False)[0]
        return x + added


class _FeedForward(nn.Module):
    """x + W₂ GELU(W₁ norm(x)), four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.body(x)
        return x + added


class _Layer(nn.Module):
    """Regions look at words and words at regions (one set of weights, as in LXMERT), then each at its own kind."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.across = _Attention(width, heads)
        self.within = nn.ModuleList(_Attention(width, heads) for _ in range(2))
        self.after = nn.ModuleList(_FeedForward(width) for _ in range(2))

    def forward(self, r: Tensor, w: Tensor, no_region: Tensor, no_word: Tensor) -> tuple[Tensor, Tensor]:
        r, w = self.across(r, w, no_word), self.across(w, r, no_region)
        r, w = self.within[0](r, r, no_region), self.within[1](w, w, no_word)
        return self.after[0](r), self.after[1](w)


@final
class CrossAttention(Backbone):
    """A compact cross-attention encoder in LXMERT's style (Tan and Bansal, 2019), giving (B, width).

    Takes (regions (B, R, F), words (B, T)): a region of zeros and a word 0 mean none and are never attended to. Each
    input gets a learned token in front, so that one without regions or words is not empty; tanh of a linear layer over
    the two tokens, after `layers` layers and a normalisation, is the feature. Deviations from LXMERT: one stack of
    layers that attend across and within instead of three, normalisation before each part, not after, so that it trains
    without a long warm-up, and no place of its own for boxes: put them among the F features. Weights start normal with
    deviation .02, as BERT's, biases at 0.

    shape: (R, F, T, V) of an `Input`; `width`: of every token, shared among as many heads as can have 64 or
    more each; `layers`: how many.
    """

    def __init__(self, shape: tuple[int, ...], width: int, layers: int) -> None:
        super().__init__()
        _, features, length, vocabulary = shape
        heads = max((h for h in range(1, width // 64 + 1) if width % h == 0), default=1)
        self.n_features, self.trained = width, False
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.places = nn.Parameter(torch.empty(length, width))
        self.regions = nn.Linear(features, width)
        self.tokens = nn.Parameter(torch.empty(2, 1, 1, width))
        self.before = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(2 * width, width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif ".norm." not in name and parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        with torch.no_grad():
            self.words.weight[0] = 0

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """Return (B, width)."""
        regions, words = x
        one = words.new_zeros((words.shape[0], 1), dtype=torch.bool)
        no_region = torch.cat([one, (regions == 0).all(-1)], 1)
        no_word = torch.cat([one, words == 0], 1)
        r = self.before[0](self.regions(regions))
        w = self.before[1](self.words(words) + self.places[: words.shape[1]])
        token_r, token_w = (token.to(r.dtype).expand(words.shape[0], -1, -1) for token in self.tokens)
        r, w = torch.cat([token_r, r], 1), torch.cat([token_w, w], 1)
        for layer in self.layers:
            r, w = layer(r, w, no_region, no_word)
        return torch.tanh(self.last(self.norm(torch.cat([r[:, :1], w[:, :1]], 1)).flatten(1)))
