"""Small transformers: one that foretells the next token at each position, and one that looks at images in patches."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from motley.core.errors import DataError
from motley.nets.models import Split, image, model, tokens


class Attention(nn.Module):
    """Attention of several heads over a sequence [B, T, W]; ``causal``: nobody sees what comes after."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        query, key, value = self.into(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        made: Tensor = self.out(seen.transpose(1, 2).reshape(b, t, w))
        return made


class Block(nn.Module):
    """Attention, then two linear layers, each beside what comes in and after a norm of it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        made: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return made


class GPT(Split):
    """Tokens and places embedded, causal blocks, and a linear layer at each position: logits [B, T, V].

    last: only the last position is asked, logits [B, V], for texts whose label is one token.
    """

    def __init__(self, vocabulary: int, length: int, classes: int, width: int, layers: int, heads: int, last: bool):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.last = last
        _begin_small(self)

    def features(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm(self.blocks(self.embed(x) + self.place.weight))
        return made[:, -1] if self.last else made


class ViT(Split):
    """Patches and places embedded, blocks that see everything, and a linear layer on the mean of all patches."""

    def __init__(
        self, shape: tuple[int, int, int], classes: int, patch: int, width: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.patch, self.grid = patch, (height // patch, breadth // patch)
        self.embed = nn.Linear(channels * patch * patch, width)
        self.place = nn.Embedding(self.grid[0] * self.grid[1], width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        _begin_small(self)

    def features(self, x: Tensor) -> Tensor:
        (rows, columns), p, channels = self.grid, self.patch, x.shape[1]
        pieces = x.reshape(len(x), channels, rows, p, columns, p).permute(0, 2, 4, 1, 3, 5)
        patches = self.embed(pieces.reshape(len(x), rows * columns, -1))
        made: Tensor = self.norm(self.blocks(patches + self.place.weight))
        return made.mean(1)


def _begin_small(net: nn.Module) -> None:
    """Weights from N(0, 0.02^2) and biases of 0, as GPT-2 begins."""
    for one in net.modules():
        if isinstance(one, nn.Linear | nn.Embedding):
            nn.init.normal_(one.weight, std=0.02)
        if isinstance(one, nn.Linear):
            nn.init.zeros_(one.bias)


def _check(name: str, width: int, layers: int, heads: int) -> None:
    if min(width, layers, heads) < 1 or width % heads:
        raise DataError(
            f"The model '{name}' was given width={width}, layers={layers}, heads={heads}; all must be positive, and "
            "the width a multiple of the heads."
        )


@model
def gpt(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    last: bool = False,
) -> GPT:
    """Causal transformer for problem=next_token; last=true foretells the token after the text alone."""
    length = tokens("gpt", shape, vocabulary)
    _check("gpt", width, layers, heads)
    return GPT(vocabulary, length, classes, width, layers, heads, last)


@model
def vit(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 0,
    patch: int = 4,
    width: int = 64,
    layers: int = 4,
    heads: int = 4,
) -> ViT:
    """Vision transformer: square patches, learned places, the mean over patches."""
    channels, height, breadth = image("vit", shape)
    _check("vit", width, layers, heads)
    if patch < 1 or height % patch or breadth % patch:
        raise DataError(f"The model 'vit' cannot cut {height} x {breadth} pixels into patches of {patch} x {patch}.")
    return ViT((channels, height, breadth), classes, patch, width, layers, heads)
