"""Where an agent trains: in a process of its own that can be killed, or, for rehearsals, in a thread of this one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from motley.client.site import Site
from motley.core.keys import Key
from motley.core.part import compose
from motley.core.tasks import NOTHING, Assignment, Failed, Finished, Kept, Weights
from motley.deploy.messages import Task
from motley.engine.executor import Executor, make_executor
from motley.engine.loop import one_thread, run_task

MEASURED_STEPS = 20


def with_quickest(site: Site, quickest: float) -> Site:
    """A site that knows how fast the fastest device of the federation is."""
    if not quickest or quickest == site.devices.quickest:
        return site
    return replace(site, devices=replace(site.devices, quickest=quickest))


class InThread:
    """Trains in one thread of this process."""

    def __init__(self, site: Site, pool: ThreadPoolExecutor) -> None:
        self.site, self.pool = site, pool

    async def __call__(self, task: Task, a: Assignment, own: Kept | None) -> Finished:
        site = with_quickest(self.site, task.quickest)
        work = asyncio.get_running_loop().run_in_executor(self.pool, _train, site, a, own)
        return await work

    async def close(self) -> None:
        """The thread is its owner's."""


def _train(site: Site, a: Assignment, own: Kept | None) -> Finished:
    with one_thread():
        return run_task(site, a, site.facts([a]).row(0), own)


class InProcess:
    """Trains by an executor whose processes are ended when a task is called back."""

    def __init__(self, site: Site, spec: str, device: str) -> None:
        self.site, self.spec, self.device = site, spec, device
        self._executor: Executor | None = None
        self._quickest = 0.0

    async def __call__(self, task: Task, a: Assignment, own: Kept | None) -> Finished:
        if self._executor is None or task.quickest != self._quickest:
            await self.close()
            self._quickest = task.quickest
            site = with_quickest(self.site, task.quickest)
            self._executor = await asyncio.to_thread(make_executor, self.spec, site, 1, self.device)
        executor = self._executor
        try:
            return await asyncio.to_thread(_submit, executor, a, own)
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.close)


def _submit(executor: Executor, a: Assignment, own: Kept | None) -> Finished:
    (done,) = executor.submit([a], lambda client: own)
    if isinstance(done, Failed):
        raise done.error
    return done


def seconds_per_epoch(site: Site, seat: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """How long an epoch takes here, by a few steps of it."""
    n = int(site.data.sizes[seat])
    steps = -(-n // site.training.batch_size)
    epochs = min(1.0, MEASURED_STEPS / steps)
    start = Weights(site.training.net.initial())
    plain = replace(site, training=replace(site.training, method=compose(name="measure")))
    a = Assignment("measure", seat, 1, start, NOTHING, {}, epochs, epochs, False, 1e-3, Key.root(0))
    facts = plain.facts([a]).row(0)
    run_task(plain, a, facts, None)
    begun = clock()
    run_task(plain, a, facts, None)
    return (clock() - begun) / epochs
