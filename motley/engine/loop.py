"""One client after the other, in this process: the reference, and the one to step through with a debugger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from motley.client.site import Site
from motley.client.trainer import new_client, train
from motley.core.errors import MotleyError
from motley.core.tasks import Assignment, Dials, Failed, Finished, Kept
from motley.core.types import Facts
from motley.engine.executor import EXECUTORS, Own
from motley.engine.memory import keep_memory
from motley.engine.reports import Rows, finished, width_of


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread per client, so that results do not depend on how many clients run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def dial_tensors(dials: Dials) -> dict[str, dict[str, Tensor]]:
    """The parts' numbers as hooks read them."""
    return {part: {key: torch.tensor(value) for key, value in own.items()} for part, own in dials.items()}


def run_task(site: Site, a: Assignment, facts: Facts, own: Kept | None) -> Finished:
    """Trains one task."""
    c = new_client(
        site.training, a.start.value, facts, a.key.tensor(), a.down.tree, own, dial_tensors(a.dials)
    )  # fmt: skip
    made = train(site.training, c, site.data.client(a.client))
    return finished(a, made, float(facts.n), int(facts.steps), width_of(site.training, facts))


class Loop:
    """Trains tasks one by one on the CPU."""

    name = "loop"
    device = torch.device("cpu")

    def __init__(self, site: Site) -> None:
        keep_memory()
        self.site = site

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        rows = Rows(len(assignments))
        facts = self.site.facts(assignments)
        with one_thread():
            for place, a in enumerate(assignments):
                try:
                    done = run_task(self.site, a, facts.row(place), own(a.client))
                except MotleyError as error:
                    yield Failed(a.id, error)
                    continue
                payload = done.report.payload
                if isinstance(payload, Tensor) and payload.shape == a.start.value.shape:
                    done = done._replace(report=done.report._replace(payload=rows.put(place, payload)))
                yield done

    def close(self) -> None:
        """Nothing to free."""


@EXECUTORS.add("loop", hidden=("site",))
def make_loop(site: Site) -> Loop:
    """One client after the other in this process; the reference."""
    return Loop(site)
