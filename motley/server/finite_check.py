"""Updates that are not finite: dropped at once, or a reason to stop by the end of the round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from motley.core.errors import TrainingError
from motley.core.stacking import stack_rows
from motley.core.tasks import Update


class FiniteCheck:
    """Looks at the updates of a round.

    drop: those that are not finite are left out; to see which, the host waits for the device that computes them.
    Otherwise all are taken, and the round is refused when it ends, which costs no time of its own.
    """

    def __init__(self, drop: bool) -> None:
        self.drop = drop
        self._open: list[tuple[Sequence[Update], Tensor]] = []  # updates, and which of them are finite: [K]

    def sound(self, updates: Sequence[Update]) -> list[Update]:
        """The updates that may be taken."""
        if not updates:
            return []
        sums = stack_rows([_numbers(update) for update in updates]).sum(1)  # finite only if all of them are
        fine = torch.isfinite(sums)
        if self.drop:
            return [update for update, ok in zip(updates, fine.tolist(), strict=True) if ok]
        self._open.append((updates, fine))
        return list(updates)

    def settle(self) -> None:
        """Stops with a sentence where an update that was taken is not finite."""
        waiting, self._open = self._open, []
        for updates, fine in waiting:
            for update, ok in zip(updates, fine.tolist(), strict=True):
                if not ok:
                    raise TrainingError(
                        f"The update of client {update.client} in round {update.round} is not finite (NaN or "
                        "infinite); lower the learning rate, or drop such updates with on_bad_update=drop."
                    )

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong inside is blamed on updates that are not finite, if there are any."""
        try:
            yield
        except Exception:
            self.settle()
            raise


def _numbers(update: Update) -> Tensor:
    """What must be finite: the change, or the model where it is handed on and can be seen."""
    return update.held.value if update.held is not None and update.held.here else update.delta
