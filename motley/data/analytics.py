"""How heterogeneous federated data are, in numbers. All work on whole arrays; a million clients take seconds.

``labels`` [M, C] are the samples per client and class (`FederatedData.labels`), ``sizes`` [M] their row sums,
``p_i = labels_i / sizes_i`` a client's class mix and ``p`` that of all samples together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from motley.core.errors import InputError
from motley.core.keys import Key
from motley.data.federated import FederatedData

Floats = NDArray[np.float64]
Counts = NDArray[np.integer[Any]]
CHUNK = 65_536  # clients at a time
PAIRS = 100_000  # pairs of clients beyond which they are sampled
DRAWS = 2_000  # cohorts drawn


@dataclass(frozen=True)
class DataFacts:
    """The heterogeneity of federated data before any training."""

    clients: int
    samples: int
    classes: int
    size_min: int
    size_max: int
    size_mean: float
    size_std: float
    gini: float  # of sizes: 0 all equal, 1 one client has everything
    c_score: float  # RADFed: mean over clients of sum_c |p_ic - p_c|, 0 to 2
    emd: float  # the same distance, weighted by size (Zhao et al.)
    js: float  # mean Jensen-Shannon divergence of two clients, in bits, 0 to 1
    kl: float  # mean Kullback-Leibler divergence of two clients' smoothed mixes, in bits
    classes_per_client: float  # mean number of classes a client holds
    classes_missed_by_cohort: float  # mean fraction of classes that no member of a random cohort holds
    cohorts_missing_a_class: float  # fraction of random cohorts that miss at least one class

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def describe(data: FederatedData, cohort: int, key: Key) -> DataFacts:
    """All numbers at once, for random cohorts of the given size."""
    labels = data.labels
    sizes = labels.sum(1, dtype=np.int64)
    return DataFacts(
        clients=len(sizes),
        samples=int(sizes.sum()),
        classes=int((labels.sum(0) > 0).sum()),
        **size_statistics(sizes)._asdict(),
        gini=gini(sizes),
        c_score=c_score(labels),
        emd=emd(labels),
        js=jensen_shannon(labels, key),
        kl=kullback_leibler(labels, key),
        classes_per_client=float(np.mean((labels > 0).sum(1))),
        classes_missed_by_cohort=classes_missed(labels, cohort),
        cohorts_missing_a_class=cohorts_missing_a_class(labels, cohort, key),
    )


class SizeStatistics(NamedTuple):
    size_min: int
    size_max: int
    size_mean: float
    size_std: float


def size_statistics(sizes: Counts) -> SizeStatistics:
    """Least, largest, mean and standard deviation of client sizes."""
    return SizeStatistics(int(sizes.min()), int(sizes.max()), float(sizes.mean()), float(sizes.std()))


def gini(sizes: Counts) -> float:
    """Gini coefficient ``sum_i (2 i - M - 1) n_(i) / (M sum n)`` of the sizes in ascending order."""
    ordered = np.sort(sizes).astype(np.float64)
    m = len(ordered)
    return float(((2 * np.arange(1, m + 1) - m - 1) * ordered).sum() / (m * ordered.sum()))


def distances(labels: Counts) -> Floats:
    """``sum_c |p_ic - p_c|`` of each client: [M], 0 to 2."""
    total = labels.sum(0, dtype=np.float64)
    total /= total.sum()
    return np.concatenate([np.abs(_mix(part) - total).sum(1) for part in _chunks(labels)])


def c_score(labels: Counts) -> float:
    """RADFed's class non-IID score ``1/K sum_k sum_c |r_c^k - R_c|``: 0 (every client like the whole) to 2."""
    return float(distances(labels).mean())


def emd(labels: Counts) -> float:
    """Earth mover's distance to the global mix, ``sum_i n_i / n sum_c |p_ic - p_c|`` (Zhao et al. 2018)."""
    sizes = labels.sum(1, dtype=np.float64)
    return float((distances(labels) * sizes).sum() / sizes.sum())


def jensen_shannon(labels: Counts, key: Key) -> float:
    """Mean over pairs of clients of ``H((p + q) / 2) - (H(p) + H(q)) / 2`` in bits; pairs are sampled when many."""
    i, j = _pairs(len(labels), key)
    total = 0.0
    for a, b in _both(labels, i, j):
        p, q = _mix(a), _mix(b)
        total += float((_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2).sum())
    return max(total / max(len(i), 1), 0.0)


def kullback_leibler(labels: Counts, key: Key, smoothing: float = 1.0) -> float:
    """Mean over ordered pairs of ``sum_c p_c log2(p_c / q_c)``; every class counts `smoothing` samples more.

    Without smoothing the divergence of two clients is infinite as soon as one lacks a class of the other.
    """
    i, j = _pairs(len(labels), key)
    total = 0.0
    for a, b in _both(labels, i, j):
        p, q = _mix(a + smoothing), _mix(b + smoothing)
        ratio = np.log2(p / q)
        total += float(((p - q) * ratio).sum()) / 2  # the mean of both directions
    return max(total / max(len(i), 1), 0.0)


def classes_missed(labels: Counts, cohort: int) -> float:
    """Mean fraction of classes that no member of a random cohort holds, exactly.

    A class with h holders among M clients is missed with probability ``C(M - h, k) / C(M, k)`` (hypergeometric).
    """
    from scipy.special import gammaln

    m = len(labels)
    k = _cohort(cohort, m)
    holders = (labels > 0).sum(0)
    rest = m - holders[holders > 0]  # classes that nobody holds are not counted
    safe = np.maximum(rest - k, 0)
    log = gammaln(rest + 1) - gammaln(safe + 1) - gammaln(m + 1) + gammaln(m - k + 1)
    return float(np.where(rest >= k, np.exp(log), 0.0).mean())


def cohorts_missing_a_class(labels: Counts, cohort: int, key: Key, draws: int = DRAWS) -> float:
    """Fraction of random cohorts in which at least one class (of those anybody holds) is missing, by sampling."""
    m = len(labels)
    k = _cohort(cohort, m)
    held = labels > 0
    held = held[:, held.any(0)]
    rng = key.fold("cohorts").generator()
    missing = sum(not held[rng.choice(m, k, replace=False)].any(0).all() for _ in range(draws))
    return missing / draws


def _cohort(cohort: int, m: int) -> int:
    if not 1 <= cohort <= m:
        raise InputError(f"A cohort must have 1..{m} of the {m} clients, not {cohort}.")
    return cohort


def _mix(labels: NDArray[Any]) -> Floats:
    mix = labels.astype(np.float64)
    mix /= np.maximum(mix.sum(1, keepdims=True), 1e-300)
    return mix


def _entropy(p: Floats) -> Floats:
    bits: Floats = -(p * np.log2(np.where(p > 0, p, 1.0))).sum(1)
    return bits


def _chunks(labels: Counts) -> list[Counts]:
    return [labels[i : i + CHUNK] for i in range(0, len(labels), CHUNK)]


def _both(labels: Counts, i: NDArray[np.int64], j: NDArray[np.int64]) -> list[tuple[Counts, Counts]]:
    step = 16_384
    return [(labels[i[s : s + step]], labels[j[s : s + step]]) for s in range(0, len(i), step)]


def _pairs(m: int, key: Key) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs i < j, or a random sample of them."""
    if m * (m - 1) // 2 <= PAIRS:
        i, j = np.triu_indices(m, 1)
        return i, j
    rng = key.fold("pairs").generator()
    i = rng.integers(0, m, PAIRS)
    return i, (i + rng.integers(1, m, PAIRS)) % m


class TableRow(NamedTuple):
    """One data set of RADFed's Table I, ours (mean over seeds) beside the paper's."""

    name: str
    minimum: float
    maximum: float
    mean: float
    std: float
    c_score: float
    paper: tuple[float, float, float, float, float]  # the same five


RADFED_TABLE_ONE = {  # data set, lambda, and the paper's min, max, mean, stdev, C-score
    "MNIST-1": ("mnist", 1.0, (3, 3365, 700, 667, 0.70)),
    "MNIST-0.1": ("mnist", 0.1, (11, 3327, 700, 658, 1.29)),
    "Cifar10": ("cifar10", 0.1, (2, 2850, 600, 605, 1.29)),
}


def radfed_table_one(seeds: int = 3, clients: int = 100) -> list[TableRow]:
    """RADFed's Table I for the sets partitioned by eq. 1, recomputed: training and test samples pooled, mu = 1."""
    from motley.data.datasets import load
    from motley.data.partitioning import make_partition
    from motley.data.split import pooled

    rows = []
    for name, (source, lam, paper) in RADFED_TABLE_ONE.items():
        dataset = pooled(load(source))
        found = []
        for seed in range(seeds):
            partition = make_partition(f"radfed(lam={lam})", dataset, clients, Key.root(seed))
            labels = FederatedData(dataset, partition).labels
            found.append((*size_statistics(labels.sum(1)), c_score(labels)))
        low, high, mean, std, score = np.mean(found, 0).tolist()
        rows.append(TableRow(name, low, high, mean, std, score, paper))
    return rows
