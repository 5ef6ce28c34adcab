"""Several runs at a time, each in a process of its own, and what they leave to each other."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

import torch

from motley.core.errors import TrainingError

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(
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

    def fill() -> None:
        while len(under_way) < jobs and (until is None or time.time() < until):
            for following in waiting:
                begun(following)
                under_way[pool.submit(work, following)] = following
                break
            else:
                return

    try:
        fill()
        while under_way:
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                if isinstance(future.exception(), BrokenProcessPool):
                    raise BrokenProcessPool
                yield under_way.pop(future), future
            fill()
    except BrokenProcessPool:
        raise TrainingError(
            "A process that trained was ended by the system, perhaps for lack of memory; the same command with fewer "
            "--jobs goes on."
        ) from None
    except BaseException:
        _end(pool)
        raise
    pool.shutdown()


def _end(pool: ProcessPoolExecutor) -> None:
    """Ends a pool's processes, whatever they are doing."""
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


def give_back() -> None:
    """Leaves the GPU's memory to the others; torch would keep it for the process's next run."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
