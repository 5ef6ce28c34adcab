"""Random keys: every draw comes from (seed, purpose, round, client) and from nothing else.

A key is a 64-bit number. Folding a word into it gives another key; random bits are a hash of (key, counter). The
same arithmetic runs on Python integers and on int64 tensors (also under ``vmap`` and on a GPU), so all engines draw
the same minibatches and the same noise.

    >>> root = Key.root(7)
    >>> root.fold("batches", 3, 12) == root.fold("batches", 3, 12)
    True
    >>> permutation(root.fold("batches", 3, 12).tensor(), 5).sort().values.tolist()
    [0, 1, 2, 3, 4]
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _mix_int(z: int) -> int:
    """The finaliser of splitmix64."""
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _signed(_MIX1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX2)
    return z ^ _shift(z, 31)


@cache
def _named(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _word(word: str | int) -> int:
    return _named(word) if isinstance(word, str) else int(word) & _MASK


@dataclass(frozen=True, slots=True)
class Key:
    """An immutable 64-bit random key."""

    value: int

    @classmethod
    def root(cls, seed: int) -> Key:
        # Folded once more: otherwise root(s).fold(s) would be the same key for every s.
        return cls(_mix_int((seed + _GOLDEN) & _MASK)).fold("root")

    def fold(self, *words: str | int) -> Key:
        """The key for a purpose: ``root.fold("batches", round, client)``."""
        value = self.value
        for word in words:
            value = _mix_int(value ^ _mix_int((_word(word) + _GOLDEN) & _MASK))
        return Key(value)

    def generator(self) -> np.random.Generator:
        """A NumPy generator for draws on the server side."""
        return np.random.Generator(np.random.Philox(key=self.value))

    def tensor(self, device: torch.device | str | None = None) -> Tensor:
        """The key as a 0-d int64 tensor."""
        return torch.tensor(self.signed, dtype=torch.int64, device=device)

    @property
    def signed(self) -> int:
        """The key as the int64 with its bits."""
        return _signed(self.value)


def fold_in(key: Tensor, word: Tensor | int) -> Tensor:
    """`Key.fold` of one integer word, on tensors (broadcasts)."""
    if isinstance(word, int):
        word = torch.tensor(word, dtype=torch.int64, device=key.device)
    return _mix(key ^ _mix(word + _signed(_GOLDEN)))


def bits(key: Tensor, counter: Tensor) -> Tensor:
    """64 random bits for each counter (broadcasts): int64."""
    return _mix(key + (counter + 1) * _signed(_GOLDEN))


def _counters(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.arange(math.prod(shape), dtype=torch.int64, device=key.device).reshape(shape)


def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform float32 in [0, 1) for one key."""
    return _shift(bits(key, _counters(key, shape)), 40).to(torch.float32) * (1.0 / (1 << 24))


def normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal float32 for one key (Box-Muller)."""
    raw = bits(key, _counters(key, shape))
    radius = (-2.0 * torch.log((_shift(raw, 40).to(torch.float32) + 1.0) * (1.0 / (1 << 24)))).sqrt()
    angle = ((raw >> 16) & 0xFFFFFF).to(torch.float32) * (2.0 * math.pi / (1 << 24))
    return radius * torch.cos(angle)


def permutation(key: Tensor, n: int) -> Tensor:
    """A random order of 0..n-1 for each key: shape ``[*key.shape, n]``."""
    counter = torch.arange(n, dtype=torch.int64, device=key.device)
    return torch.argsort(bits(key.unsqueeze(-1), counter), dim=-1, stable=True)


_CHUNK = 1 << 14  # stays in the processor's cache


def fold_each(key: Key, words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The value of ``key.fold(word)`` for each integer word, on NumPy arrays (a million in some milliseconds)."""
    words = np.ascontiguousarray(words, np.int64).view(np.uint64)
    out = np.empty(words.shape, np.uint64)
    spare = np.empty(min(len(words), _CHUNK), np.uint64)
    for start in range(0, len(words), _CHUNK):
        z = out[start : start + _CHUNK]
        np.add(words[start : start + _CHUNK], np.uint64(_GOLDEN), out=z)
        _mix_array(z, spare[: len(z)])
        z ^= np.uint64(key.value)
        _mix_array(z, spare[: len(z)])
    return out


def _mix_array(z: NDArray[np.uint64], spare: NDArray[np.uint64]) -> None:
    for bits_, factor in ((30, _MIX1), (27, _MIX2), (31, 1)):
        np.right_shift(z, np.uint64(bits_), out=spare)
        z ^= spare
        if factor != 1:
            z *= np.uint64(factor)


def uniform_each(key: Key, words: NDArray[np.int64]) -> NDArray[np.float64]:
    """One uniform number in [0, 1) for each integer word, drawn from ``key.fold(word)``."""
    out = np.empty(len(words), np.float64)
    for start in range(0, len(words), _CHUNK):
        raw = fold_each(key, words[start : start + _CHUNK])
        raw >>= np.uint64(11)
        np.multiply(raw, 2.0**-53, out=out[start : start + _CHUNK])
    return out
