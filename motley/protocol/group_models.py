"""A model for each group of clients, walking within it: none are averaged (GANDALF, Algorithm 1)."""

from __future__ import annotations

import asyncio

import torch
from torch import Tensor

from motley.core.ranges import Count, CountOrZero, NotNegative, Positive
from motley.core.tasks import Weights
from motley.core.types import Round
from motley.protocol.federation import PROTOCOLS, Federation
from motley.protocol.mediators import Rule, Rules, Table, Through, Walk, teams, walk
from motley.server.grouping import Groups

TOLD = "player_losses"  # the part by which clients tell losses of players


@PROTOCOLS.add(hidden=("fed",), punctual=True)
async def group_models(
    fed: Federation,
    groups: Count = 2,
    by: Rule = "kmeans",
    passes: Count = 1,
    through: Through = "clients",
    most: Count | None = None,
    pause: NotNegative = 0.0,
    patience: Positive | None = None,
    histogram_noise: NotNegative = 0.0,
    window: CountOrZero = 0,
    threshold: Positive = 0.02,
) -> None:
    """Each group of clients trains a model of its own, which walks from client to client (GANDALF, Algorithm 1).

    What walks have as options is that of `mediators`. window: a group is done once the mean losses of the last
    ``window`` rounds differ from those of as many before by at most ``threshold`` times the largest loss so far, for
    every player (losses tend to be flat); 0: it trains in all rounds. Shown is the first group's model.
    """
    made = teams(fed, groups, by, histogram_noise)
    _begin(fed, made)
    while going := [m for m in range(len(made)) if not flat(fed.memory["losses"][m], window, threshold)]:
        begun = False
        async for rnd in fed.rounds(at_most=1):
            begun = True
            rules = Rules(passes, most or passes, pause, patience or rnd.deadline, through == "clients")
            await _round(fed, rnd, {m: made[m] for m in going}, rules)
        if not begun:
            break


def _begin(fed: Federation, made: Groups) -> None:
    """What is remembered from round to round, as it is before the first."""
    if "models" not in fed.memory:
        fed.memory["models"] = [fed.weights.value] * len(made)
        fed.memory["losses"] = [torch.zeros(0, 0)] * len(made)
        fed.memory["clients"] = [torch.tensor(team) for team in made]


async def _round(fed: Federation, rnd: Round, made: dict[int, list[int]], rules: Rules) -> None:
    """All groups that are not done walk their models, side by side."""
    table = Table.of(fed)
    models, losses = list(fed.memory["models"]), list(fed.memory["losses"])
    walks = await asyncio.gather(*(walk(fed, rnd, team, rules, table, Weights(models[m])) for m, team in made.items()))
    for m, one in zip(made, walks, strict=True):
        if one is not None:
            models[m] = one.last.value
            losses[m] = _longer(losses[m], _told(one))
    fed.memory["models"], fed.memory["losses"] = models, losses
    fed.shown = Weights(models[0])
    table.written(fed)
    fed.note(group_losses=[rows[-1].tolist() for rows in losses if len(rows)], groups_training=len(made))


def _told(one: Walk) -> Tensor:
    """The mean losses [players] of a walk, as clients told them, or the training loss."""
    if TOLD in one.hops[0].extras:
        return torch.stack([hop.extras[TOLD].cpu() for hop in one.hops]).mean(0)
    return torch.stack([hop.loss.cpu() for hop in one.hops]).mean().reshape(1)


def _longer(rows: Tensor, row: Tensor) -> Tensor:
    return torch.cat([rows, row[None]]) if len(rows) else row[None]


def flat(losses: Tensor, window: int, threshold: float) -> bool:
    """Whether losses [R, players] have stopped to change: see `group_models`."""
    if not window or len(losses) < 2 * window:
        return False
    change = (losses[-window:].mean(0) - losses[-2 * window : -window].mean(0)).abs()
    return bool((change <= threshold * losses.abs().amax(0)).all())
