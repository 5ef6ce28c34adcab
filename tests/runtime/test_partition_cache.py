"""Partitions are made once: in a process, and, where that took long, on a machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from motley.core.keys import Key
from motley.data.datasets import load
from motley.data.federated import Partition
from motley.data.partitioning import make_partition
from motley.runtime import partition_cache as partitions
from motley.runtime.partition_cache import remembered


@pytest.fixture(autouse=True)
def an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    partitions.forget()
    monkeypatch.setattr(partitions, "SLOW_SECONDS", 0.0)
    return tmp_path / "motley" / "partitions"


def ask(spec: str = "dirichlet(alpha=0.5)", seed: int = 0, clients: int = 6) -> Partition:
    return remembered(spec, "digits", load("digits"), clients, Key.root(seed))


def same(one: Partition, other: Partition) -> bool:
    clusters = [np.zeros(0) if p.clusters is None else p.clusters for p in (one, other)]
    pairs = [(one.index, other.index), (one.offsets, other.offsets), tuple(clusters)]
    return one.shared == other.shared and all(np.array_equal(a, b) for a, b in pairs)


def test_a_process_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask()
    assert ask() is first
    assert not same(ask(seed=1), first)
    assert ask(clients=5).n_clients == 5
    monkeypatch.setattr(partitions, "KEPT", 1)
    ask(seed=2)
    assert same(again := ask(), first)
    assert again is not first, "only the last one was remembered, this one was read"


@pytest.mark.parametrize("spec", ["dirichlet(alpha=0.5)", "clustered(samples=100)"])
def test_another_process_finds_it_on_disk(spec: str, an_empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(spec)
    assert same(first, make_partition(spec, load("digits"), 6, Key.root(0)))
    assert len(list(an_empty_cache.glob("*.npz"))) == 1
    partitions.forget()
    monkeypatch.setattr(partitions, "make_partition", None)  # it is not made again
    assert same(ask(spec), first)


def test_other_code_and_damaged_files_are_not_believed(an_empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask()
    (kept,) = an_empty_cache.glob("*.npz")
    kept.write_bytes(b"no archive")
    partitions.forget()
    assert same(ask(), first)
    partitions.forget()
    monkeypatch.setattr(partitions, "_code", lambda: "another")
    ask()
    assert len(list(an_empty_cache.glob("*.npz"))) == 2


def test_quick_ones_are_not_kept_and_an_unwritable_cache_is_no_error(
    an_empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "SLOW_SECONDS", 60.0)
    ask()
    assert not an_empty_cache.exists()
    monkeypatch.setattr(partitions, "SLOW_SECONDS", 0.0)
    an_empty_cache.parent.parent.joinpath("motley").write_text("a file where a directory is wanted")
    ask(seed=3)
