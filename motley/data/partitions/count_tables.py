"""Tables of counts [clients, categories]: given row and column sums kept exactly, from real numbers to whole ones."""

from __future__ import annotations

import numpy as np

from motley.data.partitions.helpers import Floats, Ints

LARGE = 300_000  # cells beyond which rounding looks for any solution instead of the nearest one


def fit(table: Floats, rows: Ints, columns: Ints, passes: int = 200) -> Floats:
    """The table scaled row by row and column by column until it has the given sums (odds ratios stay as they are)."""
    fitted = np.maximum(table, 1e-12 * max(float(table.max()), 1.0))
    fitted = fitted * (columns > 0)
    for _ in range(passes):
        fitted *= (rows / np.maximum(fitted.sum(1), 1e-300))[:, None]
        sums = fitted.sum(0)
        if np.abs(sums - columns).max() < 1e-7 * max(int(columns.max()), 1):
            break
        fitted *= columns / np.maximum(sums, 1e-300)
    return fitted


def round_table(table: Floats, rows: Ints, columns: Ints, rng: np.random.Generator) -> Ints:
    """Whole numbers near the table whose row and column sums are exactly the given ones.

    Cells become ``floor`` or ``floor + 1`` wherever the table itself has those sums; which ones is a transport problem
    with whole-numbered corners, solved for the largest sum of the fractions rounded up (any solution for large tables).
    """
    base = np.floor(table + 1e-9).astype(np.int64)
    over = np.maximum(base.sum(1) - rows, 0), np.maximum(base.sum(0) - columns, 0)
    if over[0].any() or over[1].any():  # the sums are slightly off: leave room and let the surplus find its place
        base = np.maximum(base - 1, 0)
        base = _trim(base, rows, columns)
    need, want = rows - base.sum(1), columns - base.sum(0)
    if not need.any():
        return base
    fraction = np.clip(table - base, 0.0, 2.0)
    return base + _transport(fraction, need, want, rng)


def _trim(base: Ints, rows: Ints, columns: Ints) -> Ints:
    """The table cut down, cell by cell in order, so that no sum exceeds the given one."""
    left = np.maximum(rows, 0)
    base = np.minimum(base, np.maximum(left[:, None] - (np.cumsum(base, 1) - base), 0))
    return np.minimum(base, np.maximum(columns - (np.cumsum(base, 0) - base), 0))


def _transport(gain: Floats, need: Ints, want: Ints, rng: np.random.Generator) -> Ints:
    """Whole numbers with sums `need` [T] and `want` [U], at most 1 per cell where that is possible."""
    t, u = np.flatnonzero(need), np.flatnonzero(want)
    part = gain[np.ix_(t, u)]
    found = _nearest(part, need[t], want[u]) if part.size <= LARGE else _any(part, need[t], want[u], rng)
    added = np.zeros(gain.shape, np.int64)
    added[np.ix_(t, u)] = found
    return added


def _nearest(gain: Floats, need: Ints, want: Ints) -> Ints:
    from scipy import sparse
    from scipy.optimize import linprog

    t, u = gain.shape
    cells = np.arange(t * u)
    ones = np.ones(t * u)
    row = sparse.csr_array((ones, (cells // u, cells)), shape=(t, t * u))
    column = sparse.csr_array((ones, (cells % u, cells)), shape=(u, t * u))
    sums = sparse.vstack([row, column])
    for most in (1.0, None):  # a table whose sums are right always has a solution with at most 1 per cell
        bounds = (0.0, most)
        answer = linprog(-gain.ravel(), A_eq=sums, b_eq=np.concatenate([need, want]), bounds=bounds, method="highs-ds")
        if answer.status == 0:
            whole: Ints = np.rint(answer.x).astype(np.int64).reshape(t, u)
            return whole
    raise AssertionError("row and column sums have different totals")


def _any(gain: Floats, need: Ints, want: Ints, rng: np.random.Generator) -> Ints:
    from scipy import sparse
    from scipy.sparse.csgraph import maximum_flow

    t, u = gain.shape
    order, across = rng.permutation(t), rng.permutation(u)
    for allowed, most in ((gain > 1e-9, 1), (np.ones_like(gain, bool), 2**30)):
        i, j = np.nonzero(allowed[np.ix_(order, across)])
        heads = np.concatenate([np.zeros(t, np.int64), 1 + i, 1 + t + np.arange(u)])
        tails = np.concatenate([1 + np.arange(t), 1 + t + j, np.full(u, 1 + t + u)])
        capacity = np.concatenate([need[order], np.full(len(i), most), want[across]]).astype(np.int32)
        graph = sparse.csr_matrix((capacity, (heads, tails)), shape=(t + u + 2, t + u + 2))
        flow = maximum_flow(graph, 0, t + u + 1)
        if flow.flow_value == need.sum():
            break
    whole = np.zeros((t, u), np.int64)
    whole[np.ix_(order, across)] = flow.flow[1 : t + 1, t + 1 : t + u + 1].toarray()
    return whole
