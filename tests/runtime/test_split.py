"""Several federations on one clock: a ledger each, one carrier."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import motley
from motley.core.tasks import Weights
from motley.protocol.federation import PROTOCOLS, Federation
from motley.runtime.launch import launch
from motley.runtime.recipe import load
from motley.runtime.records import Record
from tests.runtime.killable import facts

SETTINGS: dict[str, Any] = {
    "name": "groups",
    "data": "digits",
    "clients": 8,
    "cohort": 2,
    "model": "mlp(hidden=[12])",
    "protocol": "groups",
    "method": "scaffold+fedavgm",
    "fleet": "uniform_spread(ratio=4)+delay(probability=0.5, maximum_seconds=0.01)",
    "rounds": 5,
    "lr": 0.1,
    "seed": 4,
    "executor": "loop",
    "checkpoint_seconds": 0.0,
}
GROUPS = [[0, 2, 4, 6], [1, 3, 5, 7]]


class Groups:
    """Groups side by side, each in rounds of its own; the mean of their models is shown.

    ``left``: they take what comes first and leave the rest under way, from one round of the whole to the next.
    """

    def __init__(self) -> None:
        self.groups, self.left = GROUPS, False
        self.clients: list[set[int]] = [set(), set()]
        self.spans: list[tuple[int, float, float]] = []
        self.models: list[torch.Tensor] = []
        self.under_way = 0  # at most, between two rounds of the whole

    async def __call__(self, fed: Federation) -> None:
        parts = fed.split(self.groups)
        async for _ in fed.rounds():
            await asyncio.gather(*(self.one(part, i) for i, part in enumerate(parts)))
            self.models = [part.weights.value for part in parts]
            self.under_way = max(self.under_way, sum(len(part.tasks) for part in parts))
            fed.shown = Weights(torch.stack(self.models).mean(0))
            fed.note(group_rounds=[part.memory["rounds"] for part in parts])

    async def one(self, fed: Federation, i: int) -> None:
        async for rnd in fed.rounds(at_most=1 + i):
            begun, cohort = fed.now, fed.select(rnd)
            self.clients[i] |= set(cohort)
            tasks = fed.dispatch(rnd, cohort)
            fed.aggregate(rnd, await fed.arrivals(at_least=1) if self.left else await fed.gather(tasks))
            fed.memory["rounds"] = fed.memory.get("rounds", 0) + 1
            self.spans.append((i, begun, fed.now))


@pytest.fixture(autouse=True)
def groups() -> Iterator[Groups]:
    made = Groups()

    async def protocol(fed: Federation) -> None:
        await made(fed)

    PROTOCOLS.add("groups", hidden=("fed",), options=())(protocol)
    yield made
    PROTOCOLS.entries.pop("groups")


def test_groups_run_side_by_side_on_one_clock(groups: Groups) -> None:
    result = launch(load(SETTINGS))
    assert groups.clients[0] <= set(GROUPS[0])
    assert groups.clients[1] <= set(GROUPS[1])
    first, second = ([span[1:] for span in groups.spans if span[0] == i] for i in (0, 1))
    assert any(a < d and c < b for a, b in first for c, d in second), "at the same time"
    assert result.records[-1].extra["group_rounds"] == [5, 10]
    assert all(record.participants == 2 + 2 * 2 for record in result.records), "what parts count is recorded"
    assert all(record.bytes_up > 0 for record in result.records)


def test_groups_learn_for_themselves(groups: Groups) -> None:
    """Each has a model and state of its own: alone, the first group gives the same model as beside the second."""
    launch(load(SETTINGS))
    first, second = groups.models
    assert not torch.equal(first, second)
    groups.groups = GROUPS[:1]
    launch(load(SETTINGS))
    (alone,) = groups.models
    assert torch.equal(alone, first)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_killed_and_resumed(after: int, left: bool, groups: Groups, tmp_path: Path) -> None:
    def kill(record: Record) -> None:
        if record.round == after:
            raise KeyboardInterrupt

    groups.left = left
    with pytest.raises(KeyboardInterrupt):
        launch(load(SETTINGS), tmp_path / "run", [kill])
    assert (groups.under_way > 0) == left
    resumed, models = motley.resume(tmp_path / "run"), groups.models
    whole = launch(load(SETTINGS))
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert all(torch.equal(a, b) for a, b in zip(models, groups.models, strict=True))
    assert facts(resumed.records) == facts(whole.records)
