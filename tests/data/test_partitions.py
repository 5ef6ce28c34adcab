"""Partitions: every sample at most once, requested sizes and classes, same seed same clients, sentences on failure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motley.core.errors import InputError, PartitionError
from motley.core.keys import Key
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData, Partition
from motley.data.partitioning import PARTITIONS, make_partition
from motley.data.partitions import count_tables as tables
from motley.data.partitions.overlap import without_replacement


def toy(counts: list[int]) -> Dataset:
    """A data set with the given number of samples per class."""
    y = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)))
    x = torch.arange(len(y)).float()[:, None]
    return Dataset("toy", x, y, x[:0], y[:0], len(counts), groups={"place": (torch.arange(len(y)) ** 2) % 7})


ALL = [
    "iid",
    "classes",
    "dirichlet(alpha=0.1)",
    "inner_dirichlet(alpha=0.1)",
    "major_minor(major=2)",
    "shards",
    "drawn(samples=40)",
    "drawn(samples=40, in_sequence=true)",
    "clustered(groups=[1, 3], samples=30)",
    "clustered(groups=[1, 3], samples=30, in_sequence=true)",
    "size_skew",
    "power_law",
    "linear",
    "square",
    "exponential",
    "size(partition_sizes=[5, 6, 7, 8, 9, 10, 11])",
    "natural",
    "radfed(burn_in=100, search=100)",
]
class_counts = st.lists(st.integers(20, 200), min_size=2, max_size=8)
seeds = st.integers(0, 1000)


def make(spec: str, data: Dataset, clients: int | None, seed: int = 0) -> Partition:
    return make_partition(spec, data, clients, Key.root(seed))


def assert_disjoint(p: Partition, n: int) -> None:
    assert len(np.unique(p.index)) == len(p.index)
    assert p.index.min() >= 0
    assert p.index.max() < n


@settings(max_examples=40, deadline=None)
@given(counts=class_counts, clients=st.integers(1, 30), seed=seeds)
def test_iid_uses_everything_evenly(counts: list[int], clients: int, seed: int) -> None:
    data = toy(counts)
    p = make("iid", data, clients, seed)
    assert_disjoint(p, len(data))
    assert p.sizes.sum() == len(data)
    assert p.sizes.max() - p.sizes.min() <= 1


@settings(max_examples=60, deadline=None)
@given(counts=class_counts, clients=st.integers(1, 20), per_client=st.integers(1, 4), seed=seeds)
def test_classes_gives_exactly_so_many_classes(counts: list[int], clients: int, per_client: int, seed: int) -> None:
    data = toy(counts)
    if per_client > len(counts):
        with pytest.raises(PartitionError, match="per_client"):
            make(f"classes(per_client={per_client})", data, clients, seed)
        return
    p = make(f"classes(per_client={per_client})", data, clients, seed)
    labels = FederatedData(data, p).labels
    assert_disjoint(p, len(data))
    assert ((labels > 0).sum(1) == per_client).all()
    if clients * per_client >= len(counts):
        assert p.sizes.sum() == len(data)
    for column in labels.T:
        held = column[column > 0]
        assert len(held) == 0 or held.max() - held.min() <= 1


@settings(max_examples=60, deadline=None)
@given(
    counts=class_counts,
    clients=st.integers(1, 20),
    alpha=st.sampled_from([0.01, 0.1, 1.0, 100.0]),
    min_size=st.integers(0, 12),
    balance=st.booleans(),
    seed=seeds,
)
def test_dirichlet_keeps_minimum(
    counts: list[int], clients: int, alpha: float, min_size: int, balance: bool, seed: int
) -> None:
    data = toy(counts)
    spec = f"dirichlet(alpha={alpha}, min_size={min_size}, balance={balance})"
    if clients * min_size > len(data):
        with pytest.raises(PartitionError, match="min_size"):
            make(spec, data, clients, seed)
        return
    p = make(spec, data, clients, seed)
    assert_disjoint(p, len(data))
    assert p.sizes.sum() == len(data)
    assert p.sizes.min() >= max(min_size, 1)


def test_small_alpha_is_more_skewed() -> None:
    data = toy([300] * 10)

    def skew(alpha: float) -> float:
        labels = FederatedData(data, make(f"dirichlet(alpha={alpha})", data, 10)).labels
        return float(np.abs(labels / labels.sum(1, keepdims=True) - 0.1).sum(1).mean())

    assert skew(0.05) > skew(0.5) + 0.2 > skew(100.0) + 0.4


@pytest.mark.parametrize("spec", [spec for spec in ALL if spec != "natural"])  # which draws nothing
def test_same_seed_same_clients(spec: str) -> None:
    data = toy([100] * 5)
    a, b, c = (make(spec, data, 7, seed) for seed in (3, 3, 4))
    assert np.array_equal(a.index, b.index)
    assert np.array_equal(a.offsets, b.offsets)
    assert not np.array_equal(a.index, c.index)


def test_classes_mixes_pairs() -> None:
    data = toy([200] * 10)
    labels = FederatedData(data, make("classes", data, 100)).labels
    assert len(np.unique(labels > 0, axis=0)) > 25


@pytest.mark.parametrize(
    ("spec", "clients", "words"),
    [
        ("iid", 0, "at least 1"),
        ("iid", None, "clients=N"),
        ("iid", 1000, "use fewer clients"),
        ("classes(per_client=2)", 150, "use fewer clients"),
        ("dirichlet(alpha=0)", 3, "alpha > 0"),
        ("dirichlet(min_size=200)", 3, "lower min_size"),
        ("iid+classes", 3, "one partition"),
        ("drawn(samples=500)", 3, "lower samples"),
        ("drawn(per_client=5)", 3, "per_client"),
        ("drawn(samples=1)", 3, "at least 2 samples"),
        ("clustered(groups=[1, 2])", 1, "cannot form 2 clusters"),
        ("shards(per_client=90)", 3, "smaller shards"),
        ("major_minor(ratio=0)", 3, "ratio > 0"),
        ("power_law(sigma=-1)", 3, "sigma >= 0"),
        ("power_law(per_client=1, min_size=60)", 3, "lower min_size"),
        ("size(partition_sizes=[500])", None, "add up to at most 200"),
        ("size(partition_sizes=[5, 5])", 3, "names 2 clients, but clients=3"),
        ("size_skew(alpha=0)", 3, "alpha > 0"),
        ("radfed(mu=0)", 3, "mu > 0"),
        ("radfed(theta=0.1)", 3, "features="),
        ("radfed(theta=0.1, features=[7])", 3, "columns in 0..0"),
        ("radfed(min_size=100)", 3, "lower min_size"),
        ("radfed(xi=-1)", 3, "xi >= 0"),
    ],
)
def test_sentences(spec: str, clients: int | None, words: str) -> None:
    with pytest.raises(PartitionError, match=words):
        make(spec, toy([100, 100]), clients)


def test_unknown_argument() -> None:
    with pytest.raises(InputError, match="its arguments are: per_client"):
        make("classes(n=3)", toy([10, 10]), 2)


def test_user_arguments_are_shown_without_internal_ones() -> None:
    for entry in PARTITIONS:
        assert not set(entry.parameters) & {"dataset", "clients", "key"}
        assert entry.summary.endswith("."), entry.name


def test_every_partition_is_tested_here() -> None:
    written = {"lists"}  # in test_written_partitions
    assert {spec.split("(")[0] for spec in ALL} == {entry.name for entry in PARTITIONS} - written


@settings(max_examples=60, deadline=None)
@given(counts=class_counts, clients=st.integers(1, 12), seed=seeds, spec=st.sampled_from(ALL))
def test_samples_at_most_once_unless_shared(counts: list[int], clients: int, seed: int, spec: str) -> None:
    """Whatever is asked of any partition: disjoint clients none of which is empty, or a sentence."""
    data = toy(counts)
    try:
        p = make(spec, data, clients, seed)
    except PartitionError as error:
        problem = str(error)
    else:
        problem = ""
    if problem:
        assert problem.endswith(".")
        return
    assert p.n_clients == clients
    assert p.sizes.min() >= 1
    if p.shared:
        for i in range(clients):
            assert len(np.unique(p[i])) == len(p[i])
    else:
        assert_disjoint(p, len(data))


@settings(max_examples=40, deadline=None)
@given(
    counts=class_counts,
    clients=st.integers(1, 15),
    alpha=st.sampled_from([0.05, 0.5, 50.0]),
    spread=st.booleans(),
    seed=seeds,
)
def test_inner_dirichlet_keeps_sizes_and_classes(
    counts: list[int], clients: int, alpha: float, spread: bool, seed: int
) -> None:
    data = toy(counts)
    if clients > len(data):
        return
    p = make(f"inner_dirichlet(alpha={alpha}, size_alpha={int(spread)}, min_size=2)", data, clients, seed)
    labels = FederatedData(data, p).labels
    assert np.array_equal(labels.sum(0), counts)
    assert p.sizes.min() >= 2
    if not spread:
        assert p.sizes.max() - p.sizes.min() <= 1


@settings(max_examples=40, deadline=None)
@given(n_classes=st.integers(3, 10), clients=st.integers(2, 20), major=st.integers(1, 3), seed=seeds)
def test_major_classes_outweigh_the_others(n_classes: int, clients: int, major: int, seed: int) -> None:
    data = toy([400] * n_classes)
    p = make(f"major_minor(major={major}, ratio=10)", data, clients, seed)
    labels = FederatedData(data, p).labels
    assert np.array_equal(labels.sum(0), [400] * n_classes)
    assert p.sizes.max() - p.sizes.min() <= 1


def test_major_minor_in_gandalfs_setting() -> None:
    data = toy([1000] * 10)
    labels = np.sort(FederatedData(data, make("major_minor", data, 20)).labels, axis=1)
    ratio = labels[:, 6:].mean(1) / labels[:, :6].mean(1)
    assert ratio.min() > 9
    assert ratio.max() < 11


@settings(max_examples=30, deadline=None)
@given(
    counts=class_counts, clients=st.integers(1, 12), per_client=st.integers(1, 3), size=st.integers(0, 6), seed=seeds
)
def test_shards(counts: list[int], clients: int, per_client: int, size: int, seed: int) -> None:
    data = toy(counts)
    if clients * per_client * max(size, 1) > len(data):
        return
    p = make(f"shards(per_client={per_client}, shard_size={size})", data, clients, seed)
    assert_disjoint(p, len(data))
    if size:
        assert (p.sizes == per_client * size).all()
    else:
        assert p.sizes.sum() == len(data)
        assert p.sizes.max() - p.sizes.min() <= per_client


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(5, 40), per_client=st.integers(0, 4), sigma=st.sampled_from([0.0, 1.0, 3.0]), seed=seeds)
def test_power_law(clients: int, per_client: int, sigma: float, seed: int) -> None:
    data = toy([300] * 5)
    p = make(f"power_law(per_client={per_client}, sigma={sigma})", data, clients, seed)
    labels = FederatedData(data, p).labels
    assert_disjoint(p, len(data))
    assert p.sizes.min() >= 10
    if per_client:
        assert ((labels > 0).sum(1) == per_client).all()
    if clients * max(per_client, 5) >= 5 and per_client != 0 and clients * per_client >= 5:
        assert p.sizes.sum() == len(data)


def test_power_law_in_fedsaes_setting() -> None:
    data = toy([6000] * 10)
    p = make("power_law", data, 1000)
    assert p.sizes.sum() == 60000
    assert p.sizes.max() > 10 * np.median(p.sizes)


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(1, 50), alpha=st.sampled_from([0.1, 1.0, 10.0]), least=st.integers(0, 20), seed=seeds)
def test_size_skew(clients: int, alpha: float, least: int, seed: int) -> None:
    data = toy([500, 500])
    p = make(f"size_skew(alpha={alpha}, min_size={least})", data, clients, seed)
    assert_disjoint(p, 1000)
    assert p.sizes.sum() == 1000
    assert p.sizes.min() >= max(least, 1)


def test_growing_sizes() -> None:
    data = toy([500, 500])
    assert make("linear", data, 4).sizes.tolist() == [100, 200, 300, 400]
    assert np.diff(make("square", data, 4).sizes).min() > 0
    assert make("exponential", data, 3).sizes[-1] > 600


def test_natural_takes_the_largest() -> None:
    data = toy([50, 50])
    ids = data.groups["place"].numpy()
    sizes = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
    whole = make("natural(group=place)", data, None)
    assert whole.sizes.sum() == 100
    for i in range(whole.n_clients):
        assert len(np.unique(ids[whole[i]])) == 1
    assert sorted(make("natural", data, 2).sizes.tolist(), reverse=True) == sizes[:2].tolist()
    with pytest.raises(PartitionError, match="has no group 'writer'; it has: place"):
        make("natural(group=writer)", data, None)
    with pytest.raises(PartitionError, match="lower min_size"):
        make("natural(min_size=1000)", data, None)


@pytest.mark.parametrize(
    ("flower", "ours"),
    [
        ("DirichletPartitioner(num_partitions=6, partition_by='label', alpha=0.3)", "dirichlet(alpha=0.3)"),
        (
            "dirichlet(alpha=0.3, min_partition_size=4, self_balancing=true)",
            "dirichlet(alpha=0.3, min_size=4, balance=true)",
        ),
        ("pathological(num_classes_per_partition=3, seed=1)", "classes(per_client=3)"),
        ("IidPartitioner(num_partitions=6)", "iid"),
        ("ShardPartitioner(num_shards_per_partition=2, shard_size=10)", "shards(per_client=2, shard_size=10)"),
        ("NaturalIdPartitioner(partition_by='place')", "natural(group=place)"),
        ("LinearPartitioner(num_partitions=6)", "linear"),
    ],
)
def test_names_of_flwr_datasets(flower: str, ours: str) -> None:
    data = toy([60] * 5)
    clients = None if "atural" in ours else 6
    a, b = make(flower, data, None if "num_partitions" in flower else clients), make(ours, data, clients)
    assert np.array_equal(a.index, b.index)
    assert np.array_equal(a.offsets, b.offsets)


def test_two_numbers_of_clients() -> None:
    with pytest.raises(PartitionError, match="asks for 6 clients, but clients=5"):
        make("IidPartitioner(num_partitions=6)", toy([60, 60]), 5)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 8),
    columns=st.integers(1, 8),
    seed=seeds,
    scale=st.sampled_from([0.3, 3.0, 300.0]),
    large=st.booleans(),
)
def test_rounding_keeps_all_sums(rows: int, columns: int, seed: int, scale: float, large: bool) -> None:
    rng = np.random.default_rng(seed)
    whole = rng.poisson(scale, (rows, columns))
    table = tables.fit(rng.random((rows, columns)) + 0.01, whole.sum(1), whole.sum(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "LARGE", 0 if large else 10**9)
        made = tables.round_table(table, whole.sum(1), whole.sum(0), rng)
    assert made.min() >= 0
    assert np.array_equal(made.sum(0), whole.sum(0))
    assert np.array_equal(made.sum(1), whole.sum(1))
    assert np.abs(made - table).max() < 1 + 1e-3


def test_draws_without_replacement_are_fair() -> None:
    sets = without_replacement(6, 3, 6000, np.random.default_rng(0))
    assert (np.diff(np.sort(sets, 1), axis=1) > 0).all()
    share = np.bincount(sets.reshape(-1), minlength=6) / 6000
    assert np.abs(share - 0.5).max() < 0.03


BY_LABEL = [entry.name for entry in PARTITIONS if "labels" in entry.meta.get("needs", ())]


@pytest.mark.parametrize("spec", ALL)
def test_numbers_are_divided_or_the_partition_says_that_it_needs_classes(spec: str) -> None:
    data = toy([60, 60, 60])
    numbers = replace(data, y=data.x[:, 0], test_y=data.test_x[:, 0], n_classes=0)
    name = spec.partition("(")[0]
    if name in BY_LABEL:
        with pytest.raises(
            PartitionError, match=f"The partition '{name}' divides samples by their class, but the targ"
        ):
            make(spec, numbers, 7)
    else:
        assert_disjoint(make(spec, numbers, None if name == "natural" else 7), 180)


def test_some_partitions_need_classes() -> None:
    assert {"dirichlet", "classes", "major_minor"} <= set(BY_LABEL)
    numbers = Dataset("numbers", torch.ones(9, 1), torch.ones(9), torch.ones(1, 1), torch.ones(1), 0)
    with pytest.raises(PartitionError, match="The partition 'dirichlet' divides samples by their class"):
        make("DirichletPartitioner(num_partitions=3, alpha=0.5)", numbers, None)
