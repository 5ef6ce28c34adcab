"""How processes keep their memory, and how outcomes are gathered."""

from __future__ import annotations

import gc
import platform
import resource
import weakref

import pytest
import torch

from motley.client.trainer import Outcome
from motley.core.types import stack_rows
from motley.fleet.fleet import Fate
from motley.run.charges import Ticket
from motley.run.executors.memory import keep_memory
from motley.run.executors.outcomes import Rows
from motley.run.flights import Flying
from motley.run.runner import Run
from tests import tiny


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_memory_that_was_freed_serves_the_next_tensor() -> None:
    keep_memory()
    size = 4 * (1 << 20)

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            several = [torch.ones(size) for _ in range(3)]
            del several
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()  # the first time it is new
    assert faults() < 20 * 3 * 4 * size / 4096 / 100


def test_changes_are_put_where_whoever_stacks_them_copies_nothing() -> None:
    rows = Rows(3)
    changes = torch.randn(3, 5)
    put = {place: rows.put(place, changes[place]) for place in (2, 0, 1)}
    stacked = stack_rows([put[i] for i in range(3)])
    assert torch.equal(stacked, changes)
    assert stacked.data_ptr() == put[0].data_ptr() != changes.data_ptr()


def test_a_run_is_freed_with_its_last_use_though_the_collector_never_looks() -> None:
    run = Run(tiny.experiment(rounds=2), None)
    assert gc.get_freeze_count() > 10_000  # torch and all that
    run.go()
    fed = weakref.ref(run.fed)
    gc.disable()
    try:
        del run
        assert fed() is None
    finally:
        gc.enable()


def test_what_is_held_back_no_longer_keeps_its_round() -> None:
    run = Run(tiny.experiment(), None)
    flight = Flying(Ticket(2, 1, run.fed.weights, {}, {}, 1.0, 1.0, 1.0, 1.0, 0.1, 0.0, Fate(delay_rounds=1)), 0)
    flight.outcome = Outcome(torch.zeros(4, 3).unbind()[1], torch.ones(1), {}, {}, torch.zeros(()))
    run.fed._hold(flight)
    assert flight.outcome.payload.untyped_storage().nbytes() == 3 * 4
    run.close()
