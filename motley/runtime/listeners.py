"""Who listens to a run: evaluation, records, checkpoints, progress, trackers, and whatever a user adds.

A listener is told when a round has ended, when the model was evaluated, when the run was saved, and when it has
finished. It may read the run (its model, its records, its recipe) and may ask it to stop. Everything a run does between
two rounds is a listener; their order is the order of what follows from what.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from motley.core.errors import InputError, TrainingError, UnknownNameError
from motley.engine.device import precision
from motley.runtime.diagnostics import Diagnostics, Moment
from motley.runtime.evaluation import Judged, evaluate, ready_to_judge
from motley.runtime.own_scores import Served, own_scores
from motley.runtime.records import Record
from motley.runtime.stopping import Rule, parse_stop, reason_to_stop, recorded

if TYPE_CHECKING:
    from motley.runtime.launch import Result, Run


class Listener:
    """Told what happens in a run; every method may be left as it is."""

    def begun(self, run: Run) -> None:
        """The run begins, or goes on from a checkpoint (then ``run.records`` holds what was before)."""

    def round_ended(self, run: Run, record: Record) -> None:
        """A round has ended; its record holds what happened, and its scores where it was evaluated."""

    def evaluated(self, run: Run, record: Record) -> None:
        """The model was evaluated after this round."""

    def saved(self, run: Run, number: int) -> None:
        """A checkpoint after this round is on disk."""

    def finished(self, run: Run, result: Result) -> None:
        """The run has come to its end."""


class Told(Listener):
    """A function of records, or of the run and records, as a listener."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.takes_run = _takes_run(function)

    def round_ended(self, run: Run, record: Record) -> None:
        if self.takes_run:
            self.function(run, record)
        else:
            self.function(record)


def _takes_run(function: Callable[..., Any]) -> bool:
    """Whether a function must be given two things; what can be called with neither one nor two is refused."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions tell nothing of themselves
        return False
    for given in (1, 2):
        try:
            found.bind(*range(given))
        except TypeError:
            continue
        return given == 2
    name, taken = getattr(function, "__name__", type(function).__name__), ", ".join(found.parameters)
    raise InputError(
        f"A listener is called with (record) or (run, record), but {name} takes ({taken}); change its arguments."
    )


def as_listener(one: Listener | Callable[..., Any]) -> Listener:
    """A listener, or a function that is called after every round with its record, or with the run and its record."""
    if isinstance(one, Listener):
        return one
    if not callable(one):
        raise InputError(f"A listener is a function or a motley.Listener, not {one!r}.")
    if isinstance(one, type) and issubclass(one, Listener):
        raise InputError(f"The listener {one.__name__} is a class; give an object of it, {one.__name__}().")
    return Told(one)


class Evaluator(Listener):
    """Judges the model on the test samples, and on validation samples where there are any."""

    def __init__(self, run: Run) -> None:
        device = run.model.device
        self.test = ready_to_judge(device, run.experiment.dataset)
        validation = run.experiment.validation
        self.validation = None if validation is None else ready_to_judge(device, validation)
        self.last: Judged | None = None

    def round_ended(self, run: Run, record: Record) -> None:
        recipe = run.recipe
        self.last = None
        if record.round % recipe.evaluate_every == 0 or record.round == recipe.rounds:
            self.judge(run, record)

    def judge(self, run: Run, record: Record) -> None:
        """Fills in the scores of a record."""
        e = run.experiment
        with precision(e.training.precision):
            self.last = evaluate(e.net, e.problem, run.model, self.test)
            if self.last.scores["loss"] != self.last.scores["loss"]:
                raise TrainingError(_not_finite(run, record))
            record.scores = dict(self.last.scores)
            if self.validation is not None:
                own = evaluate(e.net, e.problem, run.model, self.validation).scores
                record.extra |= {f"validation_{name}": value for name, value in own.items()}
            if e.data.own_tests is not None:
                record.extra |= own_scores(e.net, e.problem, run.model, e.data.own_tests, _served(run))


def _served(run: Run) -> Served | None:
    """The models that clients use themselves; None where all use the server's."""
    e, kept = run.experiment, getattr(run.carrier, "kept", None)
    hooks = e.method.hooks("serve")
    if not hooks or kept is None:
        return None

    def served(client: int) -> torch.Tensor:
        model, own = run.model, kept(client) or {}
        for name, hook in hooks:
            model = hook(e.net, model, own.get(name))
        return model

    return served


def _not_finite(run: Run, record: Record) -> str:
    """Why the loss is not a number: the test samples, or the model."""
    x = run.experiment.dataset.test_x
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        return "The test samples hold numbers that are not finite (NaN or infinite); mend or remove those rows."
    return f"The global model is not finite after round {record.round}; lower the learning rate (or the server's step)."


class Diagnoser(Listener):
    """Measures what the recipe's diagnostics ask for."""

    def __init__(self, run: Run, evaluator: Evaluator) -> None:
        self.diagnostics = Diagnostics(run.recipe.diagnostics)
        self.evaluator = evaluator

    def round_ended(self, run: Run, record: Record) -> None:
        if not self.diagnostics.functions:
            return
        headline = run.experiment.problem.headline
        history = [one.scores[headline] for one in [*run.records, record] if headline in one.scores]
        moment = Moment(
            run.experiment, record.round, run.model, run.fed.ledger.came, self.evaluator.last, history, run.measures
        )
        record.extra |= self.diagnostics.measure(moment)


class Recorder(Listener):
    """Keeps the records, in memory and, with a directory, one line each in ``rounds.jsonl``."""

    def round_ended(self, run: Run, record: Record) -> None:
        run.records.append(record)
        if run.folder is not None:
            with (run.folder / "rounds.jsonl").open("a") as log:
                log.write(record.to_line() + "\n")


class Checkpointer(Listener):
    """Saves the run every so often, and after its last round."""

    def __init__(self) -> None:
        self._saved = time.perf_counter()

    def begin(self, run: Run) -> None:
        """Saves a new run before its first round, once everybody knows that it has begun."""
        if run.fed.ledger.round == 0:
            self.save(run)

    def round_ended(self, run: Run, record: Record) -> None:
        due = time.perf_counter() - self._saved >= run.recipe.checkpoint_seconds
        if due or record.round == run.recipe.rounds or run.fed.stopping:
            self.save(run)

    def save(self, run: Run) -> None:
        if run.folder is not None:
            run.save()
            self._saved = time.perf_counter()


class EmptyRounds(Listener):
    """Warns of rounds in which no update reaches the server, and stops a run into which nothing was ever merged."""

    WARNED = 5  # rounds in a row without a single update
    PATIENCE = 20  # such rounds from the start

    def __init__(self) -> None:
        self._ever = False
        self._empty = 0

    def begun(self, run: Run) -> None:
        self._ever = any(record.arrived for record in run.records)

    def round_ended(self, run: Run, record: Record) -> None:
        self._ever = self._ever or record.arrived > 0
        self._empty = 0 if record.arrived else self._empty + 1
        if self._empty == self.WARNED:
            warnings.warn(
                f"No update has reached the server for {self.WARNED} rounds, up to round {record.round}; look at the "
                "fleet, the deadline and who is there ('motley describe').",
                stacklevel=2,
            )
        if self._ever:
            return
        if record.round >= self.PATIENCE or record.round == run.recipe.rounds:
            lost = sum(one.lost for one in run.records)
            late = sum(one.late for one in run.records)
            raise TrainingError(
                f"In {record.round} rounds not one update reached the server ({lost} lost, {late} too late), so "
                "nothing was learned; look at the fleet, the deadline and who is there ('motley describe')."
            )


class Stopper(Listener):
    """Ends a run early, as its recipe says; a run that is resumed where it had ended stays there."""

    def __init__(self, rules: list[Rule], text: str) -> None:
        self.rules, self.text = rules, text

    def begun(self, run: Run) -> None:
        self._look(run)

    def round_ended(self, run: Run, record: Record) -> None:
        for rule in self.rules:
            if record.judged and not recorded(run.records, rule.score) and not run.recipe.diagnostics:
                if rule.score in run.experiment.problem.goals:
                    raise InputError(
                        f"The score '{rule.score}' cannot be told of these test samples (perhaps they hold one class), "
                        f"so stop='{self.text}' would never hold; judge by others, or stop by another score."
                    )
                known = [*record.scores, *(name for name in record.extra if record.score(name) is not None)]
                raise UnknownNameError("recorded score", rule.score, [*known, "train_loss"])
        self._look(run)

    def _look(self, run: Run) -> None:
        if reason_to_stop(self.rules, run.records) is not None:
            run.stop(self.text)


def _stoppers(run: Run) -> list[Listener]:
    text = run.recipe.stop
    return [] if text is None else [Stopper(parse_stop(text, run.experiment.problem), text)]


def standard(
    run: Run, given: Iterable[Listener | Callable[..., Any]], careful: Iterable[Listener] = ()
) -> list[Listener]:
    """Everything that listens to a run, in order; the careful ones know of a round before it is saved."""
    evaluator = Evaluator(run)
    inner = [evaluator, Diagnoser(run, evaluator), Recorder(), EmptyRounds(), *_stoppers(run), *careful, Checkpointer()]
    return [*inner, *map(as_listener, given)]
