"""From the name of a model to a network with seeded weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.registry import parse
from motley.nets.models import MODELS


def make(spec: str, shape: tuple[int, ...], classes: int, vocabulary: int, key: Key) -> nn.Module:
    """The module a short form names, ``mlp(hidden=[64, 64])``, its weights drawn from the key alone."""
    calls = parse(spec, "model")
    if len(calls) != 1:
        raise InputError(f"A run trains one model, but '{spec}' names {len(calls)}; keep one of them.")
    name, arguments = calls[0]
    return drawn(lambda: MODELS.make(name, tuple(shape), classes, vocabulary, **arguments), key)


def drawn(maker: Callable[[], nn.Module], key: Key) -> nn.Module:
    """The module that a function makes, its weights drawn from the key alone."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(key.value & (2**63 - 1))
        return maker()


def build(spec: str, shape: tuple[int, ...], classes: int, vocabulary: int, key: Key) -> Network:
    """`make`, as a `Network`: pure functions of a flat parameter vector.

    shape: of one input, (C, H, W), (D,) or (T,); classes: number of labels; vocabulary: of text, otherwise 0.
    """
    made = Network(make(spec, shape, classes, vocabulary, key))
    made.made_from = {"model": spec, "shape": list(shape), "classes": classes, "vocabulary": vocabulary}
    return made
