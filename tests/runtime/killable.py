"""A run that can be killed: started in a process of its own as ``python -m tests.runtime.killable FOLDER CASE``."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motley.core.keys import Key
from motley.core.part import compose
from motley.fleet.fleet import Fate, Fleet
from motley.methods import make_method
from motley.protocol.federation import PROTOCOLS, Federation
from motley.runtime.experiment import Given
from motley.runtime.launch import Listening, Result, launch, resume
from motley.runtime.records import Record
from tests import tiny


@PROTOCOLS.add("wandering", hidden=("fed",))
async def wandering(fed: Federation) -> None:
    """Rounds that end while tasks are out, held back, or arrived and not yet looked at."""
    async for rnd in fed.rounds():
        fed.dispatch(rnd, fed.select(rnd))
        if rnd.number % 3 == 0:
            fed.aggregate(rnd, await fed.arrivals(until=fed.now + 2.0))
            await fed.sleep(1.5)  # something arrives now, and is taken in the next round
        else:
            fed.aggregate(rnd, await fed.arrivals(at_least=2))


class Wander(tiny.OneByOne):
    """Some are late by rounds, some by seconds, some are lost; the clock sees many ties."""

    def one(self, client: int, number: int, fate: Fate) -> Fate:
        chance = Key.root(8).fold("wander", client, number).generator()
        lost, rounds, delay = chance.random() < 0.15, int(chance.integers(0, 4)), float(chance.integers(0, 3))
        return fate._replace(lost=lost, delay_rounds=rounds, delay=delay)


def even_fleet() -> Fleet:
    """Devices and links so fast that only whole seconds of delay count: many ties."""
    fleet = Fleet.ideal(12, Key.root(9)).with_(fortune=(Wander(),))
    fast = np.full(12, 1e300)
    return fleet.with_(flops=fast, up=fast, down=fast)


def unlucky_fleet() -> Fleet:
    """Every third round all updates are lost: how long it takes depends on what is known of their size."""
    lost = tiny.Lost(*((client, number) for client in range(12) for number in (3, 6, 9, 12)))
    return Fleet.ideal(12, Key.root(9)).with_(fortune=(lost,))


CASES: dict[str, dict[str, Any]] = {
    "scaffold": {"method": "scaffold+fedavgm", "fleet": unlucky_fleet()},
    "ties": {"method": "scaffold+fedavgm", "fleet": even_fleet(), "protocol": "wandering"},
    "uneven": {
        "method": "feddyn+scaffold",
        "fleet": tiny.uneven_fleet(12).with_(fortune=(Wander(),)),
        "protocol": "wandering",
    },
}


def given(case: str) -> dict[str, Any]:
    chosen = CASES[case]
    data = tiny.data((7, 16, 5, 21, 10, 13) * 2)
    method = compose(make_method(chosen["method"]), protocol=chosen.get("protocol"), name=case)
    return {"data": data, "net": tiny.network(data), "method": method, "fleet": chosen["fleet"]}


def begin(folder: Path, case: str, rounds: int = 12, listeners: Listening = ()) -> Result:
    recipe = tiny.recipe(rounds=rounds, cohort=4, checkpoint_seconds=0.0, state_memory_mb=0.001, epochs=1.0, lr=0.05)
    return launch(recipe, folder, listeners, Given(**given(case)))


def again(folder: Path, case: str, listeners: Listening = ()) -> Result:
    return resume(folder, listeners, **given(case))


def facts(records: list[Record]) -> list[dict[str, Any]]:
    """Everything in records but the time on the wall."""
    return [{key: value for key, value in asdict(record).items() if key != "wall_time"} for record in records]


def snapshots(monkeypatch: pytest.MonkeyPatch, folder: Path, into: Path, once: str) -> list[Path]:
    """Copies of a directory at every moment a file is about to be renamed or has just been: what a kill leaves.

    They are made from the moment on in which the file ``once`` is there.
    """
    taken: list[Path] = []
    replace = Path.replace

    def copy() -> None:
        if (folder / once).exists():
            taken.append(into / f"{len(taken):04d}")
            shutil.copytree(folder, taken[-1])

    def watched(self: Path, target: Any) -> Path:
        copy()
        result = replace(self, target)
        copy()
        return result

    monkeypatch.setattr(Path, "replace", watched)
    return taken


if __name__ == "__main__":
    place, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    (again if (place / "checkpoint" / "checkpoint.json").exists() else lambda *a: begin(*a, rounds=rounds))(place, name)
