"""Worker processes and how they are spoken to: every message is a tree in Motley's own format, never a pickle.

(Only what a process is started with, the model and the data, goes by Python's own means: it comes from this process.)
"""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pickle import PicklingError
from typing import Any

import torch
from torch import Tensor

from motley.client.site import Site
from motley.core import errors
from motley.core.codec import Content, dumps, loads
from motley.core.errors import InputError, MotleyError, TrainingError
from motley.core.tasks import Assignment, Finished, Report
from motley.core.types import Facts, Tree
from motley.engine.memory import keep_memory

REMEMBERED = 4  # contents that a worker keeps
WHOLE = ("client", "round")  # facts that are whole numbers

Serve = Callable[..., None]


# ------------------------------------------------------------------ in the worker
def live(serve: Serve, pipe: Connection, *given: Any) -> None:
    """The life of a worker: it serves until its pipe says that the run has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_memory()
    gc.freeze()  # what was imported and sent stays for the worker's whole life; the collector need not look at it
    with contextlib.suppress(EOFError, OSError):  # the run has ended, perhaps while this client trained
        pipe.send_bytes(dumps({"ready": True}))
        serve(pipe, *given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking the interpreter down in order takes seconds, and there is nothing to save


class Memory:
    """The contents that a worker was sent last."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Content] = OrderedDict()

    def __call__(self, ref: str) -> Content | None:
        return self._held.get(ref)

    def __contains__(self, ref: str) -> bool:
        return ref in self._held

    def learn(self, *contents: Content) -> None:
        for content in contents:
            self._held[content.ref] = content
            self._held.move_to_end(content.ref)
        while len(self._held) > REMEMBERED:
            self._held.popitem(last=False)

    @property
    def refs(self) -> list[str]:
        return list(self._held)


def answer(work: Callable[[], Tree], trouble: str) -> bytes:
    """What work gives, or why it gives nothing, as bytes; ``trouble`` begins the sentence about an unforeseen error."""
    try:
        return dumps({"made": work()})
    except MotleyError as error:
        return dumps({"error": error_tree(error)})
    except Exception as error:
        return dumps({"error": error_tree(TrainingError(f"{trouble}: {type(error).__name__}: {error}"))})


# ------------------------------------------------------------------ what travels
def task_tree(a: Assignment, own: Tree) -> Tree:
    """A task for a worker, but for the model it starts from, and what its client keeps."""
    return {**{key: value for key, value in a.to_tree().items() if key != "start"}, "own": own}


def facts_rows(facts: Facts) -> list[Tree]:
    """Stacked facts as numbers, a row for each client: a message of numbers is made ten times as fast as of tensors."""
    return [list(row) for row in zip(*(column.tolist() for column in facts), strict=True)]


def facts_from(row: Tree) -> Facts:
    """One client's facts, bit for bit: what is float32 there is one here."""
    told = dict(zip(Facts._fields, row, strict=True))
    labels = torch.tensor(told.pop("labels"), dtype=torch.float32)
    whole = torch.tensor([told.pop(name) for name in WHOLE]).unbind()
    numbers = torch.tensor(list(told.values()), dtype=torch.float64).to(torch.float32).unbind()
    return Facts(**dict(zip(WHOLE, whole, strict=True)), **dict(zip(told, numbers, strict=True)), labels=labels)


def finished_tree(done: Finished) -> Tree:
    return {"report": dict(done.report._asdict()), "own": done.own}


def finished_from(tree: Tree) -> Finished:
    return Finished(Report(**tree["report"]), tree["own"])


def error_tree(error: MotleyError) -> Tree:
    """An error by its kind and what it was made of; one that is not of Motley's own kinds by its text alone."""
    if getattr(errors, type(error).__name__, None) is not type(error):
        error = TrainingError(str(error))
    return {"kind": type(error).__name__, "given": list(error.__reduce__()[1])}


def error_from(tree: Tree) -> MotleyError:
    made: MotleyError = getattr(errors, tree["kind"])(*tree["given"])
    return made


def received(data: bytes) -> Tree:
    """What a worker made; its errors are raised here."""
    reply = loads(data)
    if "error" in reply:
        raise error_from(reply["error"])
    return reply["made"]


# ------------------------------------------------------------------ in the run's process
_CANNOT_START = (
    "Worker processes cannot start: each imports the script that was started, and that failed. Put what starts the run "
    'below: if __name__ == "__main__": (and not into standard input or a notebook), or use executor=loop.'
)


def _refuse_main() -> None:
    """Ends a worker that imports a script which starts a run, and refuses a script that no worker could import."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(1)  # quietly: whoever started it says what is wrong
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None and not os.path.exists(main):
        raise InputError(_CANNOT_START)


class Workers:
    """Some worker processes, each with a pipe."""

    def __init__(self, serve: Serve, given: list[tuple[Any, ...]]) -> None:
        """One worker for each entry of ``given``, which is what it is started with."""
        _refuse_main()
        self.pipes: list[Connection] = []
        self._processes: dict[Connection, BaseProcess] = {}
        resource_tracker.ensure_running()  # its start would unblock what `_no_interrupts` blocks
        try:
            for each in given:
                self._start(serve, each)
            for pipe in self.pipes:
                self._await(pipe)
        except BaseException:
            self.close()
            raise

    def _start(self, serve: Serve, given: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=live, args=(serve, theirs, *given), daemon=True)
        with _quiet_threads(), _no_interrupts(), _can_be_sent():
            process.start()
        theirs.close()
        self.pipes.append(ours)
        self._processes[ours] = process

    def _await(self, pipe: Connection) -> None:
        """A worker that cannot begin is told, not waited for."""
        process = self._processes[pipe]
        wait([pipe, process.sentinel])
        try:
            if pipe.poll():
                pipe.recv_bytes()
                return
        except (EOFError, OSError):
            pass
        raise InputError(_CANNOT_START)

    def send(self, pipe: Connection, message: bytes) -> bool:
        """Whether the worker was there to take a message."""
        try:
            pipe.send_bytes(message)
        except OSError:
            return False
        return True

    def receive(self, pipe: Connection) -> bytes | None:
        """What a worker answers; None where it has died."""
        try:
            return pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def drop(self, pipe: Connection) -> None:
        """Goes on without a worker that has died."""
        self.pipes.remove(pipe)
        pipe.close()
        _end(self._processes.pop(pipe))

    def stop(self) -> None:
        """Ends all workers where they stand."""
        for process in self._processes.values():
            process.terminate()
        self.close()

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send_bytes(b"")
                pipe.close()
        for process in self._processes.values():
            _end(process)
        self.pipes, self._processes = [], {}


def _end(process: BaseProcess) -> None:
    process.join(timeout=2)
    if process.is_alive():
        process.terminate()
        process.join()


def died(client: int) -> TrainingError:
    return TrainingError(
        f"A worker process died while training client {client}, perhaps for lack of memory; "
        "use fewer workers (workers=...) or executor=loop."
    )


def shared_site(site: Site) -> Site:
    """The site as workers get it: training samples in memory that processes share, and no others.

    Tensors that are sent to a process move there, so everything else is copied: what was given stays where it is.
    """
    data, dataset = site.data, site.data.dataset
    with _can_be_sent():
        training, transforms, scaling = copy.deepcopy((site.training, data.transforms, dataset.scaling))
    x, y = shared(dataset.x), shared(dataset.y)
    placed = replace(
        dataset, x=x, y=y, test_x=x.new_empty(0, *x.shape[1:]), test_y=y.new_empty(0, *y.shape[1:]), scaling=scaling,
        groups={}, test_groups={},
    )  # fmt: skip
    return replace(site, training=training, data=replace(data, dataset=placed, transforms=transforms))


def shared(tensor: Tensor) -> Tensor:
    """A copy in shared memory; the tensor itself where it lies there already."""
    return tensor if tensor.is_shared() else torch.empty_like(tensor).share_memory_().copy_(tensor)


@contextlib.contextmanager
def _can_be_sent() -> Iterator[None]:
    """Says what to do where something cannot be sent to another process."""
    try:
        yield
    except (PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"The run cannot be sent to worker processes: {error}; "
            "define models, schedules and parts at the top of a module, or use executor=loop."
        ) from None


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Children begun in here never see Ctrl-C, which is the parent's to handle; the parent sees it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """Children must not start threads of their own while they import."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
