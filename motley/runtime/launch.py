"""One way to begin, resume and finish a run. What happens between two rounds is told to listeners."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import motley
from motley.core.errors import MemoryFullError, MotleyError, StateError, UnknownNameError
from motley.core.files import flush, held, write_json, write_text
from motley.core.types import Round, Tree
from motley.engine import Executor
from motley.engine.memory import set_aside
from motley.protocol import PROTOCOLS
from motley.protocol.carrier import Carrier
from motley.runtime import checkpoint, divergence  # noqa: F401 (the second registers diagnostics)
from motley.runtime.assembly import executor_of, federation, simulated
from motley.runtime.coordinator import AfterRound
from motley.runtime.experiment import Experiment, Given, prepare
from motley.runtime.extension import LONGER, reopened
from motley.runtime.folders import (
    PREPARATION,
    begin,
    has_checkpoint,
    new_folder,
    open_run,
    read_summary,
)
from motley.runtime.listeners import Checkpointer, Evaluator, Listener, standard
from motley.runtime.origin import check_origin
from motley.runtime.progress_line import Progress, progress_listeners
from motley.runtime.recipe import Recipe, load, parse_override
from motley.runtime.records import Record, read_records
from motley.runtime.result import Result, module_with, summary_of
from motley.runtime.saving import write_model
from motley.runtime.task_log import EventLog
from motley.runtime.trackers import make_trackers
from motley.runtime.writing import unwritable_is_told
from motley.server.tally import Tally

__all__ = [
    "Listening",
    "Result",
    "Run",
    "begin",
    "executor_of",
    "has_checkpoint",
    "launch",
    "launch_one",
    "new_folder",
    "open_run",
    "read_summary",
    "resume",
    "run",
]

Listening = Iterable[Listener | Callable[..., Any]]
"""Listeners, functions of a record, and functions of a run and a record."""
L = TypeVar("L", bound=Listener)


class Run:
    """One run in one directory (or in memory only, without a directory)."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path | None = None,
        listeners: Listening = (),
        *,
        executor: Executor | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        """``executor`` replaces the one the recipe names, ``carrier`` the simulation's."""
        self.experiment, self.recipe, self.folder = experiment, experiment.recipe, folder
        self.records: list[Record] = []
        self.measures: dict[str, Tree] = {}  # what diagnostics remember from round to round
        self.ended = "rounds"  # by what the run ended: rounds, until, or why it was stopped
        self._lock: ExitStack | None = None  # on the directory
        self._wall_before = 0.0
        self._begun = time.perf_counter()
        self.carrier = carrier if carrier is not None else simulated(experiment, self._checkpoints, executor)
        try:
            self.fed = federation(experiment, self.carrier, getattr(self._executor, "device", "cpu"))
            self.fed.after_round = self._after_round
            self.listeners = standard(self, listeners, _careful(self.recipe))
        except BaseException:
            self.carrier.close()
            raise

    @property
    def _checkpoints(self) -> Path | None:
        return self.folder / "checkpoint" if self.folder else None

    @property
    def model(self) -> Tensor:
        """The model as it is now [P]: the global one, or what the protocol shows in its place."""
        return (self.fed.shown or self.fed.weights).value

    @property
    def module(self) -> nn.Module:
        """A copy of the module with the weights as they are now."""
        return module_with(self.experiment.net, self.model)

    @property
    def _executor(self) -> Executor | None:
        found: Executor | None = getattr(self.carrier, "executor", None)
        return found

    @property
    def executor_name(self) -> str | None:
        """Who trains; None where that is not this process's to know."""
        return None if self._executor is None else self._executor.name

    @property
    def wall(self) -> float:
        return self._wall_before + time.perf_counter() - self._begun

    def stop(self, why: str = "stopped") -> None:
        """No further round begins; the run finishes with what it has."""
        self.fed.stopping, self.ended = True, why

    # ------------------------------------------------------------------ from beginning to end
    def go(self) -> Result:
        """Trains to the end. What is interrupted can be taken up with `resume`."""
        try:
            with set_aside():
                self.begin()
                self.carrier.run(self.drive())
                return self.finish()
        except torch.OutOfMemoryError:
            raise MemoryFullError(
                f"The GPU's memory was full after round {self.fed.ledger.round}; take a smaller batch_size or cohort, "
                "or let fewer processes share the GPU (what was saved can be resumed)."
            ) from None
        finally:
            self.close()

    def bare_rounds(self, after_round: AfterRound | None = None) -> None:
        """The protocol alone: nothing is evaluated, recorded or saved. For measurements of Motley itself."""
        self.fed.after_round = after_round
        self.carrier.run(self.drive())

    def begin(self) -> None:
        """Takes the directory, tells listeners, and saves what a new run starts from."""
        self._own()
        self.tell("begun")
        _one(self.listeners, Checkpointer).begin(self)

    async def drive(self) -> None:
        """Runs the protocol with its options, until it ends or time is up."""
        name = self.experiment.method.protocol
        options = self.fed.options if PROTOCOLS[name].parameters else {}
        protocol = asyncio.ensure_future(PROTOCOLS.make(name, self.fed, **options))
        if self.recipe.until is not None:
            end = self.experiment.now + self.recipe.until
            asyncio.get_running_loop().call_at(end, self._time_is_up, protocol)
        try:
            await protocol
        except asyncio.CancelledError:
            if self.ended != "until":
                raise

    def _time_is_up(self, protocol: asyncio.Future[None]) -> None:
        if not protocol.done():
            self.ended = "until"
            protocol.cancel()

    def close(self) -> None:
        """Ends the executor's processes and lets go of the directory."""
        self.carrier.close()
        self.fed.after_round = None  # it refers back: with it this would outlive its last use
        if self._lock is not None:
            self._lock.close()

    def _own(self) -> None:
        """Takes the directory for this process alone, unless it has been taken."""
        if self.folder is not None and self._lock is None:
            self._lock = ExitStack()
            self._lock.enter_context(held(self.folder))

    def tell(self, what: str, *given: Any) -> None:
        """Tells all listeners."""
        for listener in self.listeners:
            getattr(listener, what)(self, *given)

    # ------------------------------------------------------------------ between two rounds
    def _after_round(self, rnd: Round, tally: Tally) -> None:
        record = Record(
            round=rnd.number,
            virtual_time=self.fed.now,
            wall_time=self.wall,
            participants=len(tally.participants),
            arrived=tally.arrived,
            lost=tally.lost,
            late=tally.late,
            bytes_up=tally.bytes_up,
            bytes_down=tally.bytes_down,
            train_loss=tally.train_loss(),
            staleness=tally.stale,
            extra={**_ends(tally), **tally.notes},
        )
        try:
            self.tell("round_ended", record)
            if record.judged:
                self.tell("evaluated", record)
        except MotleyError:
            raise
        except Exception:  # whatever a listener of the user's raises: nothing that was reached is lost
            _one(self.listeners, Checkpointer).save(self)
            raise

    # ------------------------------------------------------------------ saving
    def save(self) -> None:
        """Writes a checkpoint of what there is after the last round."""
        assert self._checkpoints is not None
        number = self.fed.ledger.round
        state = {"federation": self.fed.state(), "carrier": self.carrier.state(), "measures": self.measures}
        if self.records and self.folder is not None:
            flush(self.folder / "rounds.jsonl")
        last = self.records[-1].to_line() if self.records else None
        facts = {"record": last, "wall": self.wall, "motley": motley.__version__, "executor": self.executor_name}
        checkpoint.save(self._checkpoints, number, state, facts)
        self.carrier.saved()
        self.tell("saved", number)

    def take_up(self) -> None:
        """Goes back to the last checkpoint of this directory."""
        assert self.folder is not None
        assert self._checkpoints is not None
        self._own()
        content = checkpoint.read(self._checkpoints)
        state = checkpoint.load(self._checkpoints, content, self.model.device)
        self.fed.load(state["federation"])
        self.carrier.load(state["carrier"])
        self.measures = state["measures"]
        self._wall_before = content["wall"]
        log = self.folder / "rounds.jsonl"
        self.records = _records_until(self.fed.ledger.round, log, content.get("record"))
        write_text(log, "".join(record.to_line() + "\n" for record in self.records))

    # ------------------------------------------------------------------ the end
    def finish(self) -> Result:
        """Judges, sums up and writes what the run leaves."""
        _judge_the_last(self)
        summary = summary_of(self)
        preparation = self.experiment.preparation
        result = Result(self.folder, self.recipe, self.records, self.model, summary, self.experiment.net, preparation)
        if self.folder is not None:
            write_json(self.folder / PREPARATION, preparation.as_dict())
            write_model(self.folder / "model.safetensors", self.experiment.net, self.module, preparation)
            write_json(self.folder / "summary.json", summary)
        self.tell("finished", result)
        return result


def _records_until(number: int, log: Path, last: str | None) -> list[Record]:
    """The records of the first rounds; the last one from the checkpoint where its line was cut off."""
    found = [record for record in read_records(log) if record.round <= number] if number and log.is_file() else []
    if len(found) == number - 1 and last:
        found.append(Record.from_line(last))
    if len(found) < number:
        raise StateError(f"{log} holds {len(found)} rounds, the checkpoint {number}; start anew.")
    return found


def _judge_the_last(run: Run) -> None:
    """A run that ended before its time is judged where it ended."""
    if run.records and not run.records[-1].judged:
        _one(run.listeners, Evaluator).judge(run, run.records[-1])
        if run.folder is not None:
            lines = "".join(record.to_line() + "\n" for record in run.records)
            write_text(run.folder / "rounds.jsonl", lines)
        run.tell("evaluated", run.records[-1])


def _careful(recipe: Recipe) -> list[Listener]:
    """Listeners that are told of a round before it is saved."""
    return [*make_trackers(recipe.track), *([EventLog()] if recipe.events else [])]


def _one(listeners: Iterable[Listener], kind: type[L]) -> L:
    return next(listener for listener in listeners if isinstance(listener, kind))


def _ends(tally: Tally) -> dict[str, int]:
    """How many clients sent less than was asked for, and how many of these nothing."""
    counts = {"concluded": tally.concluded, "stragglers": tally.stragglers, "dropouts": tally.dropouts}
    return counts if tally.stragglers else {}


# ------------------------------------------------------------------ one launch
def launch(
    recipe: Recipe,
    folder: Path | None = None,
    listeners: Listening = (),
    given: Given | None = None,
    *,
    resume: bool = False,
) -> Result:
    """Carries out a recipe: from the start, or from what its directory holds; phase by phase where it has phases."""
    if not recipe.phases:
        return launch_one(recipe, folder, listeners, given, resume=resume)
    from motley.runtime.phases import run_phases  # phases are made of launches

    return run_phases(recipe, folder, listeners, given, resume=resume)


def launch_one(
    recipe: Recipe, folder: Path | None, listeners: Listening, given: Given | None, *, resume: bool
) -> Result:
    """Carries out one run: from the start, or from the checkpoint in its directory."""
    if resume and folder is not None:
        check_origin(folder, recipe, given)
        if recipe.executor == "auto":
            recipe = load(recipe, {"executor": checkpoint.read(folder / "checkpoint")["executor"]})
    if recipe.events and folder is None:
        warnings.warn("events=True leaves nothing without a folder to write events.jsonl to.", stacklevel=2)
    run = Run(_prepared(recipe, given, folder if resume else None), folder, listeners)
    with unwritable_is_told(folder):
        try:
            if resume:
                run.take_up()
            elif folder is not None:
                begin(recipe, folder, given)
        except BaseException:
            run.close()
            raise
        return run.go()


def _prepared(recipe: Recipe, given: Given | None, resumed: Path | None) -> Experiment:
    """`prepare`; whoever resumes a run with parts of their own is told how to bring them."""
    try:
        return prepare(recipe, given)
    except UnknownNameError as error:
        if resumed is None:
            raise
        raise StateError(
            f"{error} If it is one of your own, import it: 'motley --import MODULE resume {resumed}', or in Python "
            f"motley.resume({str(resumed)!r}, parts=[...])."
        ) from None


def run(
    recipe: str | Path | Mapping[str, Any] | Recipe = "digits",
    /,
    folder: str | Path | None = None,
    listeners: Listening = (),
    progress: Progress = False,
    **overrides: Any,
) -> Result:
    """Runs a recipe (a name, a TOML file, a mapping or a `Recipe`); keywords override its keys.

    With ``folder`` the run is saved there and can be resumed; without, it leaves nothing on disk. ``listeners`` are
    told what happens: `motley.Listener`, or functions that are called with the record of every round, or with the run
    and the record. ``progress=True`` shows a line that tells how far it is, ``"auto"`` does where a person watches.
    """
    place = None if folder is None else Path(folder)
    return launch(load(recipe, overrides), place, [*progress_listeners(progress), *listeners])


def resume(
    folder: str | Path,
    listeners: Listening = (),
    changes: Sequence[str] = (),
    progress: Progress = False,
    **given: Any,
) -> Result:
    """Continues an interrupted run to exactly the model the uninterrupted run gives.

    ``rounds=200`` (or ``until``, ``stop``) lets a run go on for longer than it was asked to, to the model of one that
    was asked for 200 rounds from the beginning. A run that was given its model, data, test, method, fleet or problem in
    Python must be given the same again, in the forms that `motley.train` takes; ``parts=[...]`` are factories of one's
    own parts that its recipe names.
    """
    from motley.runtime.train import given_again  # the forms of `train`, which launches

    place = Path(folder)
    longer = {key: given.pop(key) for key in LONGER if key in given}
    things = given_again(open_run(place), **given)
    recipe = reopened(place, {**dict(map(parse_override, changes)), **longer}, things)
    return launch(recipe, place, [*progress_listeners(progress), *listeners], things, resume=True)
