"""Minibatch tables by kernels: number for number those of the plain way; and what becomes of a way that fails."""

import pytest
import torch

from motley.core.keys import Key
from motley.engine.batched.checked import Checked
from motley.engine.batched.minibatches import Batches, Counts
from motley.engine.kernels import draws_op
from tests.kernels import DEVICE, needs_kernels


@needs_kernels
@pytest.mark.parametrize(
    ("sizes", "steps"),
    [([7, 3, 12], [5, 4, 9]), ([10, 10], [2, 3]), ([300, 5, 1], [40, 2, 0]), ([4], [1])],
)
def test_kernels_draw_what_the_plain_way_draws(sizes: list[int], steps: list[int]) -> None:
    k, batch = len(sizes), 5
    keys = torch.tensor([Key.root(3).fold("client", i).signed for i in range(k)], device=DEVICE)
    lengths, counted = torch.tensor(sizes, device=DEVICE), torch.tensor(steps, device=DEVICE)
    offsets = lengths.cumsum(0) - lengths
    index = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    counts = Counts(sizes, steps)
    plain = Batches(keys, index, offsets, lengths, counted, batch, counts).table(0, max(steps), k)
    found = draws_op.table(keys, index, offsets, lengths, counted, batch, counts)
    assert torch.equal(found.rows, plain.rows)
    assert (found.mask is None) == (plain.mask is None)
    if plain.mask is not None and found.mask is not None:
        assert torch.equal(found.mask, plain.mask)


def test_a_quick_way_is_trusted_once_it_agrees() -> None:
    asked: list[str] = []

    def plain() -> int:
        asked.append("plain")
        return 4

    way = Checked("adding")
    assert [way(lambda: 2 + 2, plain, int.__eq__) for _ in range(3)] == [4, 4, 4]
    assert asked == ["plain"]


@pytest.mark.parametrize("quick", [lambda: 5, lambda: 1 // 0])
def test_a_quick_way_that_differs_or_fails_is_dropped(quick: object) -> None:
    way = Checked("adding")
    assert callable(quick)
    with pytest.warns(UserWarning, match="quick way of adding does not work here"):
        assert way(quick, lambda: 4, int.__eq__) == 4
    assert way(quick, lambda: 4, int.__eq__) == 4
