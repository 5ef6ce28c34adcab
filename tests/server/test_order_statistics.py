"""Order statistics and largest entries against float64, sorted the slow way: by networks, by sorting, compiled."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from motley.core.acceleration import kernel_for, without_kernels
from motley.core.errors import InputError
from motley.server import largest_entries, order_statistics, row_offers, row_threads, sorting_network

WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {"plain": without_kernels}
if row_offers.loops() is not None:
    WAYS["compiled"] = row_offers.at_any_size


@pytest.fixture(params=sorted(WAYS))
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with WAYS[request.param]():
        yield request.param


def drawn(n_rows: int, n_columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(n_rows)).to(dtype)


def oracle(rows: Tensor, low: int, high: int) -> Tensor:
    """Column by column in plain Python; NaN sorts behind everything."""
    made = []
    for column in rows.double().T.tolist():
        ordered = sorted(column, key=lambda value: (math.isnan(value), value))
        made.append(sum(ordered[low:high]) / (high - low))
    return torch.tensor(made, dtype=torch.float64)


@pytest.mark.parametrize("n", range(1, 13))
def test_a_network_sorts_every_sequence_of_zeros_and_ones(n: int) -> None:
    """Which is enough to sort everything (Knuth)."""
    table = np.array(list(product((0, 1), repeat=n))).T.copy()
    wanted = np.sort(table, axis=0)
    for i, j in sorting_network.sorting_network(n):
        table[i], table[j] = np.minimum(table[i], table[j]), np.maximum(table[i], table[j])
    assert (table == wanted).all()


@pytest.mark.parametrize(("n", "low", "high"), [(1, 0, 1), (5, 1, 4), (8, 3, 5), (11, 5, 6), (10, 0, 3)])
def test_a_selecting_network_brings_the_ranks_that_are_asked_for(n: int, low: int, high: int) -> None:
    table = np.array(list(product((0, 1), repeat=n))).T.copy()
    wanted = np.sort(table, axis=0)[low:high].sum(0)
    pairs = sorting_network.selecting_network(n, low, high)
    for i, j in pairs:
        table[i], table[j] = np.minimum(table[i], table[j]), np.maximum(table[i], table[j])
    assert (table[low:high].sum(0) == wanted).all()
    assert set(pairs) <= set(sorting_network.sorting_network(n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 1), (7, 45), (10, 257), (65, 33), (5, 8195)])
def test_trimmed_mean_and_median_are_those_of_float64(way: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, n = drawn(*shape, dtype), shape[0]
    trim = (n - 1) // 3
    for found, low, high in (
        (order_statistics.trimmed_mean(rows, trim), trim, n - trim),
        (order_statistics.median(rows), (n - 1) // 2, n // 2 + 1),
    ):
        assert found.dtype == dtype
        assert torch.allclose(found.double(), oracle(rows, low, high), rtol=1e-6, atol=1e-7)


def test_a_known_column_by_hand(way: str) -> None:
    rows = torch.tensor([[4.0], [1.0], [100.0], [2.0], [3.0]])
    assert order_statistics.median(rows).tolist() == [3.0]
    assert order_statistics.trimmed_mean(rows, 1).tolist() == [3.0]
    assert order_statistics.trimmed_mean(rows, 0).tolist() == [22.0]
    assert order_statistics.median(rows[:4]).tolist() == [3.0]


def test_nan_is_the_largest_and_is_cut_off_like_it(way: str) -> None:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[1.0, nan, -inf, inf, nan], [2.0, 2.0, 1.0, inf, nan], [3.0, 1.0, inf, 1.0, nan]])
    assert order_statistics.median(rows).tolist()[:4] == [2.0, 2.0, 1.0, inf]
    assert order_statistics.median(rows)[4].isnan()
    assert order_statistics.trimmed_mean(rows, 0)[1].isnan()
    assert order_statistics.trimmed_mean(rows, 0)[0] == 2.0


def test_nothing_to_merge_and_no_parameters(way: str) -> None:
    assert order_statistics.median(torch.empty(3, 0)).shape == (0,)
    with pytest.raises(InputError, match="no median of no updates"):
        order_statistics.median(torch.empty(0, 3))
    with pytest.raises(InputError, match="Of 4 updates none is left when 2 are cut off"):
        order_statistics.trimmed_mean(torch.zeros(4, 3), 2)


def test_rows_that_lie_apart_and_threads_give_the_same(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of a wider table, and columns shared among more threads than divide them evenly."""
    rows = drawn(6, 40_004)[:, 1:40_002]
    alone = order_statistics.median(rows)
    monkeypatch.setattr(row_threads, "ALONE", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(order_statistics.median(rows), alone)
    assert torch.allclose(alone, oracle(rows, 2, 4).float())


@pytest.mark.skipif("compiled" not in WAYS, reason="needs Numba")
@pytest.mark.parametrize("shape", [(9, 3001), (64, 515)])
def test_compiled_and_plain_are_the_same_bit_for_bit(shape: tuple[int, int]) -> None:
    rows = drawn(*shape)
    with without_kernels():
        plain = order_statistics.trimmed_mean(rows, 2), largest_entries.top_k(rows, 40)
    with row_offers.at_any_size():
        compiled = order_statistics.trimmed_mean(rows, 2), largest_entries.top_k(rows, 40)
    assert torch.equal(plain[0], compiled[0])
    assert torch.equal(plain[1], compiled[1])


@pytest.mark.skipif("compiled" not in WAYS, reason="needs Numba")
def test_the_compiled_way_is_chosen_by_size() -> None:
    assert kernel_for("middle_mean", torch.zeros(10, 20_000), 1, 9) is not None
    assert kernel_for("middle_mean", torch.zeros(10, 100), 1, 9) is None
    assert kernel_for("middle_mean", torch.zeros(10, 20_000, dtype=torch.float16), 1, 9) is None
    assert kernel_for("top_k", torch.zeros(1, 50_000), 5) is not None
    assert kernel_for("top_k", torch.zeros(50, 1000), 5) is None
    assert kernel_for("top_k", torch.zeros(1, 50_000), 5000) is None
    with without_kernels():
        assert kernel_for("middle_mean", torch.zeros(10, 20_000), 1, 9) is None


def test_a_gradient_and_half_precision_are_left_to_torch() -> None:
    rows = drawn(5, 12).requires_grad_()
    order_statistics.trimmed_mean(rows, 1).sum().backward()
    assert rows.grad is not None
    assert torch.allclose(rows.grad.sum(0), torch.ones(12))
    assert order_statistics.median(drawn(3, 4).to(torch.bfloat16)).dtype == torch.bfloat16


def largest(row: list[float], k: int) -> list[int]:
    """NaN first, then by size, then by place."""
    order = sorted(range(len(row)), key=lambda i: (not math.isnan(row[i]), -abs(row[i]), i))
    return sorted(order[:k])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 3), (1000, 1), (1000, 999), (1000, 1000), (9001, 90), (20_011, 4)])
def test_largest_entries_are_those_of_a_sort(way: str, n: int, k: int, dtype: torch.dtype) -> None:
    rows = drawn(3, n, dtype)
    rows[1, ::2] = 0.5  # many are equal
    found = largest_entries.top_k(rows, k)
    assert found.tolist() == [largest(row, k) for row in rows.tolist()]
    assert torch.equal(largest_entries.top_k(rows[0], k), found[0])


def test_largest_entries_of_nan_zeros_and_nothing(way: str) -> None:
    row = torch.tensor([0.0, float("nan"), -5.0, float("inf"), -0.0, 5.0])
    assert largest_entries.top_k(row, 1).tolist() == [1]
    assert largest_entries.top_k(row, 3).tolist() == [1, 2, 3]
    assert largest_entries.top_k(torch.zeros(2, 20_000), 3).tolist() == [[0, 1, 2]] * 2
    assert largest_entries.top_k(row, 0).tolist() == []
    assert largest_entries.top_k(torch.empty(2, 0), 0).shape == (2, 0)
    with pytest.raises(InputError, match="The 7 largest of 6 entries"):
        largest_entries.top_k(row, 7)


def test_a_misleading_sample_changes_nothing(way: str) -> None:
    """All that a sample sees is large, or all is small."""
    for seen, others in ((9.0, 1.0), (0.0, 1.0)):
        row = torch.full((20_000,), others) + torch.arange(20_000) * 1e-5
        row[:: min(32, 20_000 // largest_entries.SAMPLE)] = seen
        assert largest_entries.top_k(row, 50).tolist() == largest(row.tolist(), 50)


def test_under_vmap_places_are_the_same() -> None:
    rows = drawn(4, 30)
    found = torch.vmap(lambda row: largest_entries.top_k(row, 5))(rows)
    assert torch.equal(found, largest_entries.top_k(rows, 5))


def test_no_compiler_is_imported_with_motley() -> None:
    compilers = "[name for name in ('numba', 'llvmlite', 'dace') if name in sys.modules]"
    told = f"import sys, motley, motley.parts; print({compilers})"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_numba_there_is_no_compiled_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_offers, "find_spec", lambda name: None)
    row_offers.loops.cache_clear()
    try:
        assert kernel_for("middle_mean", torch.zeros(10, 20_000), 1, 9) is None
        assert order_statistics.median(drawn(10, 20_000)).shape == (20_000,)
    finally:
        row_offers.loops.cache_clear()
