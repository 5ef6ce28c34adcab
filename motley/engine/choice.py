"""Which executor a run gets when it does not say: batched on a GPU; on a CPU by what a few steps take."""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import replace

import numpy as np

from motley.client.site import Site
from motley.core.keys import Key
from motley.core.part import compose
from motley.core.tasks import NOTHING, Assignment, Weights
from motley.engine.batched.mapping import maps
from motley.engine.batched.together import Batched
from motley.engine.device import pick
from motley.engine.executor import Executor, n_cores
from motley.engine.loop import Loop

SHORT = 10.0  # seconds of work below which nothing is worth a start-up
TINY = 50_000  # parameters up to which clients batched on a CPU may beat a loop
FEW = 4  # clients below which there is nothing to batch on a CPU
GAIN = 2.0  # how much faster the batched executor must be to be taken on a CPU
STEPS = 8  # steps that are timed


def choose(site: Site, *, device: str, workers: int, cohort: int, rounds: int, epochs: float) -> str:
    """The name of the executor for a run of so many rounds.

    Loop and pool give the same bits; the batched executor agrees within float tolerance, so on a CPU it is taken only
    where it is clearly faster. A run keeps its executor when it is resumed.
    """
    changing = site.data.dataset.source is not None
    together = not changing and maps(site)
    on_gpu = pick(device).startswith("cuda")
    if on_gpu and together:
        return "batched"
    if on_gpu:
        warnings.warn(_why_on_cpu(changing), stacklevel=2)
    training, data = site.training, site.data
    cohort = min(cohort, data.n_clients)
    steps = epochs * float(data.sizes.mean()) / training.batch_size
    processes = _processes(workers)
    # What parts send and keep costs little beside the steps.
    plain = replace(site, training=replace(training, method=compose(name="rehearsal")))
    per_step = rehearse(Loop(plain), plain, 1) / STEPS
    if per_step * rounds * cohort * max(1.0, steps) < SHORT:
        return "loop"
    if together and _gains(plain, cohort, per_step / processes):
        return "batched"
    return "pool" if processes > 1 and _travels(site) else "loop"


def _processes(workers: int) -> int:
    """How many a pool would have."""
    return (workers or n_cores()) if may_fork() else 1


def _why_on_cpu(changing: bool) -> str:
    """Why the batched executor is not taken although there is a GPU."""
    if changing:
        return (
            "Items of this data set change at random with every reading, which the batched executor cannot follow, so "
            "clients are trained on the CPU; with from_torch(..., reread=False) they are held as first read."
        )
    return (
        "This model cannot be trained for many clients at once (executor=batched says why), so its clients are "
        "trained one by one on the CPU, not on the GPU."
    )


def _gains(site: Site, cohort: int, per_step: float) -> bool:
    """Whether a cohort of small models, trained together, takes clearly less time per step than that."""
    if site.training.net.size > TINY or cohort < FEW:
        return False
    width = min(cohort, 32)
    return rehearse(Batched(site, "cpu"), site, width) / (STEPS * width) * GAIN < per_step


def may_fork() -> bool:
    """Worker processes import the main module again, so a script without a guard must not get them unasked."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return os.path.basename(main) in ("motley", "motley.exe", "__main__.py")


def _travels(site: Site) -> bool:
    return all(part.origin is not None for part in site.training.method.parts)


def rehearse(executor: Executor, site: Site, width: int) -> float:
    """Seconds for a few steps of ``width`` clients, after a warm-up."""
    start = Weights(site.training.net.initial())
    holders = np.flatnonzero(site.data.sizes)  # a client without samples takes no step
    tasks = [_task(site, int(holders[i % len(holders)]), start) for i in range(width)]

    def train(steps: int) -> None:
        list(executor.submit([a._replace(epochs=a.epochs * steps / STEPS) for a in tasks], lambda client: None))

    try:
        train(1)
        train(STEPS)
        begun = time.perf_counter()
        train(STEPS)
        return time.perf_counter() - begun
    finally:
        executor.close()


def _task(site: Site, client: int, start: Weights) -> Assignment:
    """A task of so many steps."""
    epochs = STEPS / -(-int(site.data.sizes[client]) // site.training.batch_size)
    key = Key.root(0).fold("rehearsal", client)
    return Assignment(f"rehearsal.{client}", client, 1, start, NOTHING, {}, epochs, epochs, False, 1e-3, key)
