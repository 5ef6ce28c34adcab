"""How processes keep their memory, and how reports are gathered."""

from __future__ import annotations

import gc
import platform
import resource
import weakref

import pytest
import torch

from motley.core.keys import Key
from motley.core.part import compose
from motley.core.stacking import stack_rows
from motley.core.tasks import Delivery
from motley.engine.loop import Loop
from motley.engine.memory import keep_memory, set_aside
from motley.engine.reports import Rows
from motley.fleet.fleet import Fleet
from motley.runtime.client_store import ClientStore
from motley.runtime.experiment import Experiment
from motley.runtime.launch import Run
from motley.runtime.virtual_carrier import VirtualCarrier
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


# ------------------------------------------------------------------------------------------------ the garbage collector


class Ring:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


def collected(ring: weakref.ref[Ring]) -> bool:
    gc.collect()
    return ring() is None


def test_what_a_run_finds_is_still_collected() -> None:
    """While it is only made, and when it has ended."""
    first, second = Ring(), Ring()
    rings = weakref.ref(first), weakref.ref(second)
    run = Run(tiny.experiment(rounds=1))
    del first
    assert collected(rings[0])
    run.go()
    del second
    assert collected(rings[1])


def test_what_was_there_is_set_aside_inside_a_block_alone() -> None:
    ring = Ring()
    seen = weakref.ref(ring)
    with set_aside():
        del ring
        assert not collected(seen)
    assert collected(seen)


def test_a_run_is_freed_with_its_last_use_though_the_collector_never_looks() -> None:
    run = Run(tiny.experiment(rounds=2))
    run.go()
    fed = weakref.ref(run.fed)
    gc.disable()
    try:
        del run
        assert fed() is None
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------------------ what is held back


class Weighing(VirtualCarrier):
    """Notes how much memory the change of every report holds when it is delivered."""

    def __init__(self, e: Experiment) -> None:
        store = ClientStore(None, 1 << 20, torch.device("cpu"))
        super().__init__(e.site, e.fleet, e.cost, Loop(e.site), store, e.recipe.epochs)
        self.held: dict[str, int] = {}

    def tell(self, delivery: Delivery) -> None:
        if delivery.report is not None:
            self.held[delivery.id] = delivery.report.payload.untyped_storage().nbytes()
        super().tell(delivery)


def test_what_is_held_back_no_longer_keeps_its_round() -> None:
    late = tiny.DelayRounds({(client, 1): 1 for client in range(3)})
    fleet = Fleet.ideal(6, Key.root(4)).with_(fortune=(late,))
    e = tiny.experiment(compose(protocol="late"), fleet=fleet, rounds=2, cohort=6)
    carrier = Weighing(e)
    Run(e, carrier=carrier).go()
    one = 4 * e.net.size
    first = [size for name, size in carrier.held.items() if name.startswith("1.")]
    assert first == [6 * one] * 3 + [one] * 3
