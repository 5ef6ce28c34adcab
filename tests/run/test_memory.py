"""How processes keep their memory, and how outcomes are gathered."""

from __future__ import annotations

import resource
import sys

import pytest
import torch

from motley.core.types import stack_rows
from motley.run.executors.memory import keep_memory
from motley.run.executors.outcomes import Rows


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
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
