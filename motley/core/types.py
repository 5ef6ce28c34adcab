"""What hooks see: one client's view of its training, a minibatch, and the server's view of a round.

Everything a client hook sees describes ONE client. A simulator may stack K of them along a leading axis (`Client` is a
pytree, so ``torch.func.vmap`` maps over it); a part never knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

if TYPE_CHECKING:
    from motley.core.keys import Key
    from motley.core.network import Network
    from motley.core.problem import Problem

Tree = Any
"""A tensor, or dicts/tuples of trees."""


class Facts(NamedTuple):
    """What a client knows about itself and its task, all as 0-d tensors except ``labels``; stacked: [K], [K, C]."""

    client: Tensor  # id, int64
    round: Tensor  # round of the task, counted from 1, int64
    n: Tensor  # number of training samples, float32
    labels: Tensor  # samples per class, float32 [C]
    lr: Tensor  # learning rate, float32
    epochs: Tensor  # epochs it will train, float32
    steps: Tensor  # minibatch steps it will train, float32
    limited: Tensor  # 1 if its device is computing-limited, float32
    speed: Tensor  # seconds for one epoch of the whole model on this device, float32
    upload: Tensor  # seconds to send the whole model up, float32
    download: Tensor = torch.zeros(())  # seconds to receive the whole model, float32
    capability: Tensor = torch.ones(())  # speed of this device as a share of the fleet's fastest, float32

    def row(self, k: int) -> Facts:
        """One client's of stacked ones."""
        return Facts(*(column[k] for column in self))


class Data:
    """A client's training samples: inputs as the network takes them, labels, and a 0/1 mask (or None: all count).

    Executors may fetch them only when a hook asks.
    """

    def __init__(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> None:
        self._x, self._y, self._mask = x, y, mask

    @property
    def x(self) -> Tensor:
        """[n, ...] inputs."""
        return self._x

    @property
    def y(self) -> Tensor:
        """[n] labels, or targets."""
        return self._y

    @property
    def mask(self) -> Tensor | None:
        """[n] 1 where a row counts; None: all do."""
        return self._mask

    def again(self, key: Tensor, epoch: int) -> Data:
        """The samples as they are seen in an epoch of a task: where they change, read anew."""
        return self


class Batch(NamedTuple):
    """A minibatch; rows with mask 0 are padding. ``share`` is the mask over its sum, where that is known beforehand."""

    x: Tensor  # [B, ...] inputs
    y: Tensor  # [B] labels, or targets
    mask: Tensor | None = None  # [B] 1 where a row counts; None: all do
    share: Tensor | None = None  # [B] the mask over its sum

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per sample over the samples that count."""
        if self.share is not None:
            return (values * self.share).sum()
        if self.mask is None:
            return values.mean()
        return (values * self.mask).sum() / self.mask.sum().clamp_min(1.0)


class Output(NamedTuple):
    """A forward pass: features (the input of the last linear layer) and logits."""

    features: Tensor  # [B, F] input of the last linear layer
    logits: Tensor  # [B, C] what the model puts out


class Mine(NamedTuple):
    """What one part finds on a client: the argument ``me`` of its client hooks."""

    name: str  # of the part
    down: Tree  # what its `send` sent
    own: Tree  # what it keeps on this client
    notes: Tree  # what it remembers during this task only
    dials: Mapping[str, Tensor]  # its numbers in this round, 0-d

    def keep(self, c: Client, state: Tree) -> Client:
        """The client with new kept state of this part; it counts once the update is accepted."""
        return c.with_(own={**c.own, self.name: state})

    def note(self, c: Client, value: Tree) -> Client:
        """The client with a note of this part, gone when the task ends."""
        return c.with_(notes={**c.notes, self.name: value})


@dataclass(frozen=True, slots=True)
class Client:
    """One client in the middle of its local training. Hooks return changed copies (`with_`)."""

    params: Tensor  # [P] now
    start: Tensor  # [P] as received
    trained: Tensor  # [L] 1 where the layer is trained
    facts: Facts  # what it knows about itself and its task
    key: Tensor  # int64: for this client in this round
    epoch: Tensor  # epochs finished so far
    step: Tensor  # minibatch steps finished so far, int64
    loss: Tensor  # mean training loss of the last finished epoch (running within an epoch)
    down: dict[str, Tree]  # what each part sent
    own: dict[str, Tree]  # what each part keeps on this client
    notes: dict[str, Tree]  # what each part remembers during this task only
    dials: dict[str, dict[str, Tensor]]  # the parts' numbers in this round
    net: Network = field(repr=False)  # the model's functions; the same for all clients
    problem: Problem = field(repr=False)  # what is learned; the same for all clients
    batch_size: int = 32  # of the local minibatches; the same for all clients

    def with_(self, **changes: Any) -> Client:
        """A changed copy; called after every step, hence not by `dataclasses.replace`, which takes twice as long."""
        new = object.__new__(Client)
        for put, value in zip(_PUTS, _ALL(self), strict=True):
            put(new, value)
        for name, value in changes.items():
            if name not in _PUT:
                raise TypeError(f"A client has no field '{name}'.")
            _PUT[name](new, value)
        return new

    def mine(self, part: str) -> Mine:
        """What a part finds here."""
        return Mine(part, self.down.get(part), self.own.get(part), self.notes.get(part), self.dials.get(part, {}))


_PUT: dict[str, Callable[[Client, Any], None]] = {name: vars(Client)[name].__set__ for name in Client.__slots__}
_PUTS, _ALL = tuple(_PUT.values()), attrgetter(*Client.__slots__)
_ALIKE = ("net", "problem", "batch_size")
_CLIENT_FIELDS = tuple(name for name in Client.__slots__ if name not in _ALIKE)


def _flatten_client(c: Client) -> tuple[list[Any], tuple[Any, ...]]:
    return [getattr(c, name) for name in _CLIENT_FIELDS], tuple(getattr(c, name) for name in _ALIKE)


def _unflatten_client(values: Any, alike: tuple[Any, ...]) -> Client:
    fields = zip((*_CLIENT_FIELDS, *_ALIKE), (*values, *alike), strict=True)
    return Client(**dict(fields))


register_pytree_node(Client, _flatten_client, _unflatten_client, serialized_type_name="motley.Client")


class Setting(NamedTuple):
    """What a part may know when it makes its server state."""

    net: Network  # the model's functions
    params: Tensor  # [P] the first global model
    n_clients: int  # of the population
    public: Data | None = None  # samples that the server holds
    n: Tensor | None = None  # [N] samples of every client, float32
    batch_size: int = 1  # of local minibatches
    seconds: Tensor | None = None  # [N] what profiling says a task of each client takes
    frozen_cost: Tensor | None = None  # [L] cost of training with 0..L-1 layers frozen, as a share of the whole
    key: Key | None = None  # for draws at the start


class Plan(NamedTuple):
    """What the server asks of each member of a cohort, one row per client."""

    epochs: Tensor  # [K] epochs wanted (fractions allowed)
    floor: Tensor  # [K] fewest epochs worth sending; equals `epochs` where all or nothing
    lr: Tensor  # [K] learning rate
    partial: Tensor  # [K] 1: who must stop early sends what it has reached (at least `floor`); 0: the state at `floor`
    limited: Tensor | None = None  # [K] 1: the device has told that it is computing-limited; None: nobody has


class Round(NamedTuple):
    """The round a server hook is called in."""

    number: int  # from 1
    key: Key  # for this round's draws
    cohort: int  # how many clients are wanted
    now: float  # virtual or wall seconds since the start
    deadline: float | None = None  # seconds after the round's start
    net: Network | None = None  # the model's functions, for merging by layer and for training on the server
    dropped: tuple[int, ...] = ()  # when merging: clients whose tasks were lost or given up in this round before
    dials: Mapping[str, float] = {}  # the part's own numbers in this round


class Pool(NamedTuple):
    """The clients that can be chosen now."""

    ids: Tensor  # [A] int64, ascending
    n: Tensor  # [N] samples of every client of the population, float32
    seconds: Tensor | None = None  # [N] what profiling says a task of each client takes, where the server profiles


class Outcomes(NamedTuple):
    """How tasks ended that the server waits for no longer, one row per task; also those of which nothing came."""

    ids: Tensor  # [K] int64
    round: Tensor  # [K] round of the task, int64
    assigned: Tensor  # [K] epochs wanted
    floor: Tensor  # [K] fewest epochs worth sending
    reached: Tensor  # [K] epochs the device trained before it stopped; 0 where nothing came
    done: Tensor  # [K] epochs behind the update that came; 0 where nothing came


@dataclass(frozen=True)
class Updates:
    """What reached the server, stacked over K arrivals in a fixed order."""

    ids: Tensor  # [K] int64
    round: Tensor  # [K] round each was trained in, int64
    age: Tensor  # [K] rounds since then, float32
    start: Tensor  # [K, P] what each one started from
    delta: Tensor  # [K, P] what went over the wire, decoded
    trained: Tensor  # [K, L] layers each one trained and sent
    n: Tensor  # [K] samples, float32
    loss: Tensor  # [K] mean training loss of the last epoch, float32
    steps: Tensor  # [K] minibatch steps done, float32
    epochs: Tensor  # [K] epochs done, float32
    lr: Tensor  # [K] learning rate
    duration: Tensor  # [K] seconds from dispatch to arrival, float32
    extras: Mapping[str, Tree]  # what each part's `report` sent up, leaves [K, ...]
    extra: Tree = None  # what the part at hand sent up
    width: Tensor | None = None  # [K] share of each hidden layer's units that was trained; None: all of them
    whole: bool | None = None  # whether everyone trained every layer, where that is known without a look at `trained`

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def seen_by(self, part: str) -> Updates:
        """The same, with what this part sent up as ``extra``."""
        return replace(self, extra=self.extras.get(part)) if self.extras else self

    @property
    def models(self) -> Tensor:
        """[K, P] the clients' models as the server can know them."""
        return self.start + self.delta
