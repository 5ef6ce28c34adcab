"""The seam between a carrier and the hardware: assignments in, reports out, as they are done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from motley.client.site import Site
from motley.core.errors import InputError
from motley.core.registry import Call, Registry, parse
from motley.core.tasks import Assignment, Failed, Finished, Kept

Own = Callable[[int], Kept | None]
"""What parts keep on a client, by its id; None where it takes part for the first time."""


class Executor(Protocol):
    """Trains tasks. What comes of one depends on it alone, never on what else is trained beside it."""

    name: str
    device: torch.device

    def submit(self, assignments: Sequence[Assignment], own: Own) -> Iterator[Finished | Failed]:
        """What becomes of the tasks, each as it is done, in any order.

        A task that cannot be trained is a `Failed` with the reason; the others go on.
        """

    def close(self) -> None:
        """Frees processes and memory."""


EXECUTORS: Registry[Executor] = Registry("executor")
"""Factories ``f(site, **arguments) -> Executor``; add your own with ``@EXECUTORS.add(hidden=("site",))``."""


def read_executor(spec: str) -> Call:
    """The name and the arguments of an executor from its short form; what it does not take is refused."""
    calls = parse(spec, "executor")
    if len(calls) != 1:
        raise InputError(f"A run has one executor, but '{spec}' names {len(calls)}.")
    name, given = calls[0]
    known = EXECUTORS[name].parameters
    for key in given:
        if key not in known:
            raise InputError(
                f"The executor '{name}' takes no argument '{key}'; its arguments are: {', '.join(known) or 'none'}."
            )
    EXECUTORS.check(name, given)
    return calls[0]


def make_executor(spec: str, site: Site, workers: int = 0, device: str = "auto") -> Executor:
    """An executor from its short form, ``pool(workers=8)``.

    ``workers`` and ``device`` are what it gets where the short form does not say and it takes such an argument.
    """
    name, given = read_executor(spec)
    known = EXECUTORS[name].parameters
    if "device" not in known and device not in ("auto", "cpu"):
        raise InputError(f"The executor '{name}' has no device '{device}' to train on; take device=cpu, or 'batched'.")
    defaults = {key: value for key, value in {"workers": workers, "device": device}.items() if key in known}
    return EXECUTORS.make(name, site, **{**defaults, **given})


def n_cores() -> int:
    """Cores this process may use: those of its affinity, which a container or a scheduler may have narrowed."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
