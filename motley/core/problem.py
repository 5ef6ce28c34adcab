"""What is learned: the loss of a minibatch, the scores of a model, and what parts may count on.

Nothing outside a problem knows a loss by name: the trainer asks for `loss`, evaluation for `scores`. A problem of one's
own is a loss per sample, and scores if one wants any:

    >>> def pinball(outputs, y):
    ...     gap = y - outputs.squeeze(-1)
    ...     return torch.maximum(0.9 * gap, -0.1 * gap)
    >>> Problem(loss=pinball, name="upper decile").headline
    'loss'
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from torch import Tensor

from motley.core.bill import Bill, Cost
from motley.core.types import Batch, Facts, Output

if TYPE_CHECKING:
    from motley.core.network import Network
    from motley.core.types import Client

D = TypeVar("D")

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, ...], targets [B, ...]) -> one loss per sample [B]"""
ScoreFunction = Callable[[Tensor, Tensor], Mapping[str, float]]
"""(outputs [N, ...], targets [N, ...]) -> scores by name, the headline first"""


class Model(Protocol):
    """The model as the loss sees it: with the weights that move now, and after what parts do to weights and logits."""

    @property
    def client(self) -> Client:
        """Whose minibatch it is: its key, its step, its facts."""

    def __call__(self, x: Tensor) -> Output:
        """A forward pass; ``logits`` as the parts left them."""

    def piece(self, name: str, *inputs: Tensor, fixed: bool = False) -> Tensor:
        """One function of the module alone; ``fixed``: its weights count as constants."""


class Turns(NamedTuple):
    """Players in one flat vector who take turns: in each step one of them moves, by an optimizer of its own."""

    players: tuple[slice, ...]  # the part of the flat vector that each moves
    rates: tuple[float, ...]  # by which the learning rate is multiplied for each
    whose: Callable[[Tensor], Tensor]  # from the number of a step to that of the player


class Learned(Protocol):
    """A data set, as far as a problem asks."""

    @property
    def n_outputs(self) -> int:
        """Classes, or numbers of a target."""

    @property
    def vocabulary(self) -> int:
        """Of texts; otherwise 0."""


class Problem:
    """What a model is trained for.

    loss: one loss per sample from the model's outputs and the targets.
    scores: numbers that say how good outputs are, by name, the headline first; the mean loss is always added.
    goals: +1 where more of a score is better, -1 where less is; scores not named there are better the larger they are.
    """

    offers: frozenset[str] = frozenset({"features"})
    """What parts may count on: ``labels`` (targets are classes, outputs their logits), ``features``."""
    classes = False
    """Whether targets are classes 0, 1, ..."""
    fractions: frozenset[str] = frozenset()
    """Scores that lie between 0 and 1."""
    inputs: str | None = None
    """What inputs are that are given as arrays: image, table or text; None: it is seen from their shape."""
    own_outputs = False
    """Whether what a model gives has nothing to do with what targets look like."""

    def __init__(
        self,
        loss: LossFunction | None = None,
        scores: ScoreFunction | None = None,
        goals: Mapping[str, int] | None = None,
        name: str = "own",
    ) -> None:
        self.name = name
        self._loss, self._scores = loss, scores
        self._beside: tuple[ScoreFunction, ...] = ()
        self.goals: Mapping[str, int] = {"loss": -1, **(goals or {})}

    def __repr__(self) -> str:
        return f"<problem {self.name}>"

    @property
    def headline(self) -> str:
        """The score that is told first; where no scores were given, the loss."""
        return next((name for name in self.goals if name != "loss"), "loss")

    @property
    def names_its_scores(self) -> bool:
        """Whether `goals` holds every score, so that one that is not there is a mistake."""
        return self._scores is None and (len(self.goals) > 1 or type(self).scores is Problem.scores)

    def better(self, score: str) -> int:
        """+1 where more of a score is better, -1 where less is."""
        return self.goals.get(score, 1)

    def with_scores(self, scores: ScoreFunction, goals: Mapping[str, int]) -> Problem:
        """The same problem with scores of one's own beside its own; ``goals`` names each, +1 where more is better."""
        made = copy.copy(self)
        made._beside = (*self._beside, scores)
        made.goals = {**self.goals, **goals}
        return made

    # ------------------------------------------------------------------ data
    def width(self, dataset: Learned) -> int:
        """How many numbers a model gives for a sample, or for each position of one."""
        return dataset.n_outputs

    def arranged(self, dataset: D) -> D:
        """A data set as the loss takes it; DataError where its targets are of another kind."""
        return dataset

    # ------------------------------------------------------------------ training
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per sample: [B]."""
        if self._loss is None:
            raise NotImplementedError(f"The problem '{self.name}' has no loss.")
        return self._loss(outputs, y)

    def mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean of `losses` over the samples that count, 0-d; replaced where it takes fewer operations."""
        return batch.mean(self.losses(outputs, batch.y))

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """The data term of one client's minibatch, 0-d; replaced where it is not one of the model's outputs alone."""
        return self.mean_loss(model(batch.x).logits, batch)

    def turn(self, net: Network) -> Turns | None:
        """Who moves in which step, where not everything always does."""
        return None

    def bill(self, net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        """What its steps cost beside one forward and one backward pass of the model; as the parts' hook ``bill``."""
        return bill

    @property
    def bills(self) -> bool:
        """Whether they cost something else."""
        return type(self).bill is not Problem.bill

    @property
    def reads_client(self) -> bool:
        """Whether its loss may depend on whose minibatch it is, and on when."""
        return type(self).loss is not Problem.loss

    # ------------------------------------------------------------------ judging
    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """How good outputs are: by name, the headline first."""
        found = dict(self._scores(outputs, y)) if self._scores is not None else {}
        return {**found, "loss": float(self.losses(outputs, y).mean())}

    def kept(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What of a batch's outputs is kept to be scored, where these are large: a row per sample."""
        return outputs

    def judge(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """All scores, also those of one's own, of what was `kept`."""
        found = self.scores(outputs, y)
        for beside in self._beside:
            found |= {name: float(value) for name, value in beside(outputs, y).items()}
        return found

    def details(self, outputs: Tensor, y: Tensor) -> dict[str, list[float]]:
        """Lists of numbers for diagnostics that ask, such as the accuracy of each class."""
        return {}
