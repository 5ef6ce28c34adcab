"""Sorting networks: fixed lists of pairs to compare, so that whole rows are compared at once and no branch is taken."""

from __future__ import annotations

from functools import lru_cache

Pairs = tuple[tuple[int, int], ...]


def sorting_network(n: int) -> Pairs:
    """Batcher's merge exchange for n values (Knuth, volume 3, algorithm 5.2.2M).

    A pair (i, j), i < j, puts the smaller of the two into place i; after all of them value i is the i-th smallest.
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top if n > 1 else 0
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return tuple(pairs)


@lru_cache(maxsize=256)
def selecting_network(n: int, low: int, high: int) -> Pairs:
    """As much of the network as brings the values of ranks low <= rank < high into the places of those ranks.

    In which order they stand there is left open, and so is the order of all others: a pair whose places are of one
    kind is left out. Going backwards, the places of a pair that is kept are of a kind of their own.
    """
    kind: list[object] = [low <= place < high for place in range(n)]
    kept: list[tuple[int, int]] = []
    for i, j in reversed(sorting_network(n)):
        if kind[i] != kind[j]:
            kept.append((i, j))
            kind[i], kind[j] = (len(kept), "smaller"), (len(kept), "larger")
    return tuple(reversed(kept))
