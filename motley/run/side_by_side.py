"""Several runs at a time, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(
    tasks: Iterable[T],
    work: Callable[[T], R],
    jobs: int,
    until: float | None = None,
    begun: Callable[[T], object] = lambda _: None,
) -> Iterator[tuple[T, Future[R]]]:
    """Tasks, each with what became of it, as they end; at most ``jobs`` of them at a time.

    until: seconds since the epoch after which none is started. begun: called with each one that is. Whoever stops
    listening, as by Ctrl-C, ends those under way: runs go on from their checkpoints another time.
    """
    waiting = iter(tasks)
    under_way: dict[Future[R], T] = {}
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        while True:
            while len(under_way) < jobs and (until is None or time.time() < until):
                try:
                    following = next(waiting)
                except StopIteration:
                    break
                begun(following)
                under_way[pool.submit(work, following)] = following
            if not under_way:
                break
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(future), future
    except BaseException:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        raise
    pool.shutdown()
