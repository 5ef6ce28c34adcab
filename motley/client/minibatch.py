"""Which samples a client sees in which step: a new random order in every epoch, drawn from its key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from motley.client.augment import Augment
from motley.core.keys import fold_in, permutation
from motley.core.types import Batch, Data

Minibatches = Iterator[tuple[Batch, bool]]
"""Minibatches, and after which of them an epoch ends."""


def n_steps(epochs: float, n: int, batch_size: int) -> int:
    """Minibatch steps of ``epochs`` passes; 3.5 are 3 passes and half the minibatches of a fourth."""
    return max(1, round(epochs * -(-n // batch_size)))


def n_steps_each(epochs: NDArray[np.float64], n: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """`n_steps` of many clients."""
    return np.maximum(1, np.rint(epochs * -(-n // batch_size))).astype(np.int64)


def minibatches(key: Tensor, data: Data, batch_size: int, steps: int, channels_last: bool = False) -> Minibatches:
    """The first ``steps`` minibatches; each epoch is a new random order. Says after which one an epoch ends.

    channels_last: images keep their shape [B, C, H, W], but the channels of a pixel lie side by side in memory.
    """
    n = len(data.y)
    seen, samples = None, data.x
    per_epoch = -(-n // batch_size)
    for epoch in range(-(-steps // per_epoch)):
        before, seen = seen, data.again(key, epoch)
        if seen is not before:
            samples = seen.x.movedim(1, -1).contiguous() if channels_last else seen.x
        order = permutation(fold_in(key, epoch), n)
        if steps - epoch * per_epoch < per_epoch:
            order = order[: (steps - epoch * per_epoch) * batch_size]
        drawn = samples.index_select(0, order)
        xs = (drawn.movedim(-1, 1) if channels_last else drawn).split(batch_size)
        ys = seen.y.index_select(0, order).split(batch_size)
        for j, (x, y) in enumerate(zip(xs, ys, strict=True)):
            yield Batch(x, y), j == per_epoch - 1


def augmented(augment: Augment | None, key: Tensor, drawn: Minibatches) -> Minibatches:
    """The same minibatches with their images changed, where a run does that."""
    if augment is None:
        yield from drawn
        return
    for s, (batch, ended) in enumerate(drawn):
        yield batch._replace(x=augment(batch.x, key, s)), ended
