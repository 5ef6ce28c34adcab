"""The data sets, by name.

>>> load("digits").input_shape
(1, 8, 8)
"""

from __future__ import annotations

import os
from functools import lru_cache

from motley.core.errors import InputError
from motley.core.registry import Registry, parse
from motley.data.dataset import Dataset
from motley.data.downloads import VARIABLE
from motley.data.sources import images, synthetic, text
from motley.data.sources import tabular as tables

DATASETS: Registry[Dataset] = Registry("data set")
"""Factories of data sets; add your own with ``@DATASETS.add()``."""

for _factory in (
    images.digits,
    images.mnist,
    images.fashion_mnist,
    images.cifar10,
    images.emnist,
    synthetic.synthetic,
    tables.covertype,
    tables.eicu,
    text.shakespeare,
    text.sent140,
):
    DATASETS.add()(_factory)


def load(spec: str) -> Dataset:
    """A data set from its short form, for example ``synthetic(alpha=0.5)``; read once per process."""
    return _load(spec.strip(), os.environ.get(VARIABLE))


@lru_cache(maxsize=8)
def _load(spec: str, _directory: str | None) -> Dataset:
    calls = parse(spec, "data set")
    if len(calls) != 1:
        raise InputError(f"A run has one data set, but '{spec}' names {len(calls)}.")
    return DATASETS.make(calls[0].name, **calls[0].arguments)
