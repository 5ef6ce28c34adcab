"""A task on its way: what goes down (`Assignment`), what comes up (`Report`), what the server makes of it (`Update`).

An assignment is everything a client needs to train and nothing that it knows itself; how many samples it has, how many
steps it took and how far it came is the report's to say.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from motley.core.codec import Content
from motley.core.errors import MotleyError, StateError
from motley.core.keys import Key
from motley.core.types import Tree

Dials = dict[str, dict[str, float]]
Kept = dict[str, Tree]
"""What each part keeps on one client."""


class Weights(Content):
    """A model, named by its content: the server's, or one that a client holds and can hand on.

    holder: the client that holds it; None: it is here. Only a simulation has the value of a model that is held, for
    its engine; a protocol asks `Federation.bring` for it.
    """

    __slots__ = ("holder", "size")

    def __init__(self, tree: Tree, ref: str | None = None, holder: int | None = None, size: int = 0) -> None:
        super().__init__(tree, ref)
        self.holder = holder
        self.size = size  # bytes, of one that is elsewhere

    @property
    def here(self) -> bool:
        """Whether its value is at hand."""
        return self.tree is not None

    @property
    def value(self) -> Tensor:
        """The flat vector [P]."""
        if self.tree is None:
            raise StateError(f"The model {self.known} is held by client {self.holder}; bring it first.")
        found: Tensor = self.tree
        return found

    def to_tree(self) -> Tree:
        """As a checkpoint holds it: the content, and who else has it."""
        if self.holder is None:
            return self
        return {"content": self if self.here else None, "ref": self.known, "holder": self.holder, "size": self.size}

    @classmethod
    def from_tree(cls, tree: Tree) -> Weights:
        if isinstance(tree, Content):
            return cls(tree.tree, tree.ref)
        inside = None if tree["content"] is None else tree["content"].tree
        return cls(inside, tree["ref"], tree["holder"], tree["size"])


NOTHING = Content({})
"""What is sent where parts send nothing."""


class Assignment(NamedTuple):
    """What one client is asked to do."""

    id: str
    client: int
    round: int  # counted from 1
    start: Weights  # the model it begins with
    down: Content  # what parts send beside it, by part; the same for all of one dispatch
    dials: Dials  # the parts' numbers in this round
    epochs: float  # passes wanted (fractions allowed)
    floor: float  # fewest passes worth sending; equals `epochs` where all or nothing
    partial: bool  # who must stop early sends what it has reached (at least `floor`), otherwise the state at `floor`
    lr: float
    key: Key  # for every draw of this task
    keep: bool = False  # the new model stays with the client, which hands it on when it is told to

    def afforded(self, epochs: float) -> tuple[Assignment, float]:
        """What a device that affords so many epochs makes of it, and how many it spends.

        The task then asks for the epochs whose result is sent; 0: nothing is.
        """
        enough = epochs * (1 + 1e-6)  # plans are float32
        if enough >= self.epochs:
            return self, self.epochs
        if enough >= self.floor:
            return self._replace(epochs=epochs if self.partial else self.floor), epochs
        return self._replace(epochs=0.0), epochs

    def to_tree(self) -> Tree:
        return {**self._asdict(), "start": self.start.to_tree(), "key": self.key.value}

    @classmethod
    def from_tree(cls, tree: Tree) -> Assignment:
        return cls(**{**tree, "start": Weights.from_tree(tree["start"]), "key": Key(tree["key"])})


class Report(NamedTuple):
    """What one client sends back; the numbers are its own."""

    id: str  # of the assignment
    payload: Tree  # the change of the weights [P], or what `encode` made of it
    trained: Tensor  # [L] 1 where a layer was trained and is sent
    extras: dict[str, Tree]  # what each part's `report` sends
    loss: Tensor  # [], mean training loss of the last epoch, where it was computed
    n: float  # training samples
    epochs: float  # passes behind the update
    steps: int  # minibatch steps behind it
    reached: float = 0.0  # passes the device trained before it stopped
    width: float | None = None  # share of each hidden layer that was trained; None: all
    held: Weights | None = None  # the new model, where it stays with the client; then there is no payload


class Finished(NamedTuple):
    """A task that was trained: what goes up, and what stays on the client if it is accepted."""

    report: Report
    own: Kept


class Failed(NamedTuple):
    """A task that could not be trained; whoever gave it may try again elsewhere."""

    id: str
    error: MotleyError


class Delivery(NamedTuple):
    """What became of a task, as a carrier tells it."""

    id: str
    what: str  # ``arrived`` with a report, ``lost``, or ``held`` back on its way
    report: Report | None = None
    bytes_up: int = 0
    why: str = ""  # of one that is lost, where known: ``holder``, because the model could not be handed on


class Update(NamedTuple):
    """One client's update as it reached the server: a report beside what it was asked for."""

    id: str
    client: int
    round: int  # round it was trained in
    start: Weights
    delta: Tensor  # [P]
    trained: Tensor  # [L]
    extras: dict[str, Tree]
    n: float
    loss: Tensor  # [], where it was computed
    steps: int
    epochs: float
    lr: float
    duration: float  # seconds from dispatch to arrival
    width: float | None = None  # share of each hidden layer that was trained; None: all
    reached: float = 0.0  # passes the device trained before it stopped
    held: Weights | None = None  # the client's model, where it stayed there; then ``delta`` is empty

    @property
    def model(self) -> Weights:
        """The client's model as it went, or would go, over the wire."""
        return Weights(self.start.value + self.delta) if self.held is None else self.held

    def to_tree(self) -> Tree:
        """As a checkpoint holds it; the model it started from is left to whoever knows it."""
        held = None if self.held is None else self.held.to_tree()
        return {key: value for key, value in self._asdict().items() if key != "start"} | {"held": held}

    @classmethod
    def from_tree(cls, tree: Tree, start: Weights) -> Update:
        held = None if tree["held"] is None else Weights.from_tree(tree["held"])
        return cls(**{**tree, "held": held}, start=start)


class Event(NamedTuple):
    """Something that happened to a task, or a merging (client -1)."""

    time: float
    what: str  # dispatch, arrive, hold, lose, give up, discard, refuse, aggregate
    client: int
    round: int
    facts: dict[str, Any] = {}  # noqa: RUF012  (loss, bytes, epochs, seconds, where known; of a dispatch its assignment)
