"""Groups of clients by what they told of their classes: alike, or together as even as can be."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from motley.core.keys import Key

Groups = list[list[int]]
TRIES = 50  # of k-means, before the most even grouping is taken


def divergence_from_uniform(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """``D_KL(P || U) = log C - H(P)`` of each row of counts [..., C]; of a row without samples log C."""
    total = counts.sum(-1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    found: NDArray[np.float64] = np.log(counts.shape[-1]) + (share * logs).sum(-1)
    return found


def towards_uniform(counts: NDArray[np.float64], groups: int) -> Groups:
    """Greedy groups whose classes are together as even as can be (GANDALF, Algorithm 4).

    Until a group has ceil(K / M) members: ``c = argmin_i D_KL(P_m + P_i || uniform)``, the first of equals.
    """
    most = -(-len(counts) // groups)
    left = list(range(len(counts)))
    made: Groups = []
    while left:
        members: list[int] = []
        together = np.zeros(counts.shape[1])
        while left and len(members) < most:
            best = left[int(np.argmin(divergence_from_uniform(together + counts[left])))]
            members.append(best)
            left.remove(best)
            together = together + counts[best]
        made.append(members)
    return made


def alike(counts: NDArray[np.float64], groups: int, key: Key, tries: int = TRIES) -> Groups:
    """Groups of clients with similar class shares, by k-means (GANDALF, Algorithm 2).

    Repeated with new seeds until the largest group has less than ``groups`` members more than the smallest; after
    ``tries`` the most even grouping is taken, with a warning.
    """
    from sklearn.cluster import KMeans

    total = counts.sum(1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    seeds = key.fold("k-means").generator().integers(1 << 31, size=tries)
    best: Groups = []
    for seed in seeds.tolist():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer different clients than groups: seen by the sizes
            found = KMeans(groups, n_init=1, random_state=seed).fit(shares).labels_
        made = [np.flatnonzero(found == m).tolist() for m in range(groups)]
        if not best or unevenness(made) < unevenness(best):
            best = made
        if unevenness(best) < groups:
            return best
    warnings.warn(
        f"After {tries} tries of k-means the groups still differ by {unevenness(best)} clients; the most even grouping "
        "is taken.",
        stacklevel=2,
    )
    return [group for group in best if group]


def unevenness(groups: Groups) -> int:
    """How many clients the largest group has more than the smallest."""
    sizes = [len(group) for group in groups]
    return max(sizes) - min(sizes)


def at_random(n_clients: int, groups: int, key: Key) -> Groups:
    """Groups of equal size (the first ones larger by one where it does not come out even), drawn."""
    order = key.fold("groups").generator().permutation(n_clients)
    return [sorted(part.tolist()) for part in np.array_split(order, groups)]
