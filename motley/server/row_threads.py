"""Columns of clients' updates shared among threads: loops over them hold no lock of the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

ALONE = 1 << 20  # numbers for which a further thread is worth starting


def shared(work: Callable[[int, int], object], n: int, numbers: int) -> None:
    """Divides n columns among as many threads as torch uses; ``work`` takes those from begin to end."""
    threads = min(torch.get_num_threads(), max(1, numbers // ALONE), max(1, n))
    if threads == 1:
        work(0, n)
        return
    ends = np.linspace(0, n, threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, ends[i], ends[i + 1]) for i in range(threads)]:
            done.result()
