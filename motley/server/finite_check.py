"""Updates that are not finite: dropped at once, or a reason to stop by the end of the round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from motley.core.code_digest import is_own
from motley.core.errors import TrainingError
from motley.core.part import Method
from motley.core.stacking import stack_rows
from motley.core.tasks import Update


class FiniteCheck:
    """Looks at the updates of a round.

    drop: those that are not finite are left out; to see which, the host waits for the device that computes them.
    Otherwise all are taken, and the round is refused when it ends, which costs no time of its own.
    """

    def __init__(self, drop: bool, method: Method | None = None) -> None:
        self.drop = drop
        self._hooks = [] if method is None else _own_hooks(method)
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
                        f"infinite); lower the learning rate{self._look()}, or drop such updates with "
                        "on_bad_update=drop."
                    )

    def _look(self) -> str:
        return f", see what {' and '.join(self._hooks)} return" if self._hooks else ""

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong inside is blamed on updates that are not finite, if there are any."""
        try:
            yield
        except Exception:
            self.settle()
            raise


INSIDE = ("begin", "view", "logits", "penalty", "gradient", "epoch", "report", "encode")


def _own_hooks(method: Method) -> list[str]:
    """Hooks that are not this package's and have a say in what a client sends, in words."""
    found = ((hook, name, function) for hook in INSIDE for name, function in method.hooks(hook))
    return [f"the hook '{hook}' of the part '{name}'" for hook, name, function in found if is_own(function)]


def _numbers(update: Update) -> Tensor:
    """What must be finite: the change, or the model where it is handed on and can be seen."""
    return update.held.value if update.held is not None and update.held.here else update.delta
