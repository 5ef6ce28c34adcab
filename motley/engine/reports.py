"""From what training gives to what goes up, client by client."""

from __future__ import annotations

from torch import Tensor

from motley.client.trainer import Trained, Training
from motley.core.stacking import stack_rows
from motley.core.tasks import Assignment, Finished, Report
from motley.core.types import Facts


def finished(a: Assignment, trained: Trained, n: float, steps: int, width: float | None) -> Finished:
    """The report of one task; the numbers are its client's own."""
    report = Report(
        id=a.id,
        payload=trained.payload,
        trained=trained.trained,
        extras=trained.extras,
        loss=trained.loss,
        n=n,
        epochs=a.epochs,
        steps=steps,
        reached=a.epochs,
        width=width,
    )
    return Finished(report, trained.own)


def width_of(training: Training, facts: Facts) -> float | None:
    """The share of each hidden layer that a client trains; None where all clients train whole layers."""
    for _, hook in training.method.hooks("width"):
        return float(hook(training.net, facts))
    return None


def together(found: list[Finished]) -> list[Finished]:
    """The same, with their payloads one after the other in one tensor: whoever stacks them then copies nothing."""
    payloads = [one.report.payload for one in found]
    if not payloads or not all(isinstance(payload, Tensor) for payload in payloads):
        return found
    rows = stack_rows(payloads)
    if rows.data_ptr() == payloads[0].data_ptr():
        return found  # they lie so already
    return [_with_payload(one, row) for one, row in zip(found, rows.unbind(), strict=True)]


def _with_payload(one: Finished, payload: Tensor) -> Finished:
    return one._replace(report=one.report._replace(payload=payload))


class Rows:
    """Changes of weights one after the other in one tensor, as they come: whoever stacks them then copies nothing."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._rows: tuple[Tensor, ...] = ()

    def put(self, place: int, change: Tensor) -> Tensor:
        """The change [P], copied to its place; as it is where it is of another kind than the first."""
        if not self._rows:
            self._rows = change.new_empty(self.n, len(change)).unbind()
        row = self._rows[place]
        return row.copy_(change) if (row.dtype, row.shape) == (change.dtype, change.shape) else change.clone()


def apart(one: Finished) -> Finished:
    """What is kept for long: its change no longer keeps those of its whole round."""
    change = one.report.payload
    return _with_payload(one, change.clone()) if isinstance(change, Tensor) else one
