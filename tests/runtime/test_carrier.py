"""The carrier of a simulation by itself: what it tells of tasks, when, and how it goes on from its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from motley.core import codec
from motley.core.codec import Content
from motley.core.keys import Key
from motley.core.tasks import Assignment, Delivery, Weights
from motley.fleet.fleet import Fleet
from motley.methods import make_method
from motley.protocol.carrier import EMPTY_SECONDS, Carrier
from motley.runtime.assembly import simulated
from motley.runtime.experiment import Experiment
from tests import tiny

SECONDS = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 2.0, 5: 5.0}
Told = list[tuple[float, str, str]]


def experiment() -> Experiment:
    """SCAFFOLD on devices whose tasks take exactly their delays; client 4 is lost, client 1 held up for a round."""
    at_once = np.full(6, np.inf)
    fortune = (tiny.Delay(SECONDS), tiny.Lost((4, 1)), tiny.DelayRounds({(1, 1): 1}))
    fleet = Fleet.ideal(6, Key.root(0)).with_(flops=at_once, up=at_once, down=at_once, fortune=fortune)
    return tiny.experiment(make_method("scaffold"), fleet=fleet)


def tasks_of(e: Experiment, clients: range, channel: str = "") -> list[Assignment]:
    start, down = Weights(e.net.initial()), Content({"control_variates": torch.zeros(e.net.size)})
    return [
        Assignment(f"{channel}1.{client}", client, 1, start, down, {}, 1.0, 1.0, False, 0.1, Key.root(client))
        for client in clients
    ]


def listen(carrier: Carrier, told: Told, reports: dict[str, Any] | None = None, channel: str = "") -> None:
    def deliver(delivery: Delivery) -> None:
        told.append((carrier.now, delivery.id, delivery.what))
        if reports is not None and delivery.report is not None:
            reports[delivery.id] = delivery.report.payload

    carrier.open(channel, deliver)


def opened(folder: Path | None = None) -> tuple[Carrier, Told, dict[str, Any]]:
    carrier: Carrier = simulated(experiment(), folder)
    told: Told = []
    reports: dict[str, Any] = {}
    listen(carrier, told, reports)
    return carrier, told, reports


def play(carrier: Carrier, *steps: tuple[float, Callable[[], object]]) -> None:
    """Does things at given moments, and lets some time pass after the last."""

    async def main() -> None:
        for when, what in steps:
            await asyncio.sleep(when - carrier.now)
            what()
        await asyncio.sleep(20.0)

    carrier.run(main())


def test_it_tells_what_becomes_of_tasks_at_the_moment_it_happens() -> None:
    carrier, told, _ = opened()
    e = experiment()
    sent: list[int] = []
    play(
        carrier,
        (0.0, lambda: carrier.begin_round("", 1)),
        (0.0, lambda: sent.append(carrier.send(tasks_of(e, range(6))))),
        (3.5, lambda: carrier.cancel(["1.5"])),
        (6.0, lambda: carrier.begin_round("", 2)),
    )
    assert told == [
        (1.0, "1.0", "arrived"),
        (2.0, "1.1", "held"),
        (2.0, "1.4", "lost"),
        (3.0, "1.2", "arrived"),
        (4.0, "1.3", "arrived"),
        (6.0, "1.1", "arrived"),
    ]
    assert sent == [6 * 8 * e.net.size], "a model and a control variate for everybody"


def test_it_goes_on_from_its_state(tmp_path: Path) -> None:
    """At 2.5 tasks are under way, one is held up, and one was delivered of which nobody has said what it is worth."""
    carrier, told, reports = opened(tmp_path)
    saved: list[bytes] = []
    play(
        carrier,
        (0.0, lambda: carrier.begin_round("", 1)),
        (0.0, lambda: carrier.send(tasks_of(experiment(), range(6)))),
        (2.5, lambda: saved.append(codec.dumps(carrier.state()))),
        (6.0, lambda: carrier.begin_round("", 2)),
    )
    other, told_again, reports_again = opened(tmp_path)
    other.load(codec.loads(saved[0]))
    assert other.now == 2.5
    play(other, (2.5, lambda: other.acknowledge(["1.0"], True)), (6.0, lambda: other.begin_round("", 2)))
    assert told_again == [row for row in told if row[0] > 2.5]
    assert len(told_again) == 4
    assert all(torch.equal(reports_again[name], reports[name]) for _, name, _ in told_again)
    kept = codec.loads(saved[0])["kept"]
    assert [row["id"] for row in kept] == ["1.0"]
    states = codec.dumps(other.state())
    assert [row["id"] for row in codec.loads(states)["kept"]] == ["1.2", "1.3", "1.5", "1.1"]
    assert list(codec.loads(states)["clients"]["where"]) == ["0"]


@pytest.mark.parametrize("accepted", [True, False])
def test_a_client_keeps_what_counts(accepted: bool) -> None:
    carrier = simulated(experiment(), None)
    listen(carrier, [])
    play(
        carrier,
        (0.0, lambda: carrier.begin_round("", 1)),
        (0.0, lambda: carrier.send(tasks_of(experiment(), range(1)))),
        (2.0, lambda: carrier.acknowledge(["1.0"], accepted)),
        (2.0, lambda: carrier.acknowledge(["1.0", "9.9"], True)),
    )
    assert (carrier.store.get(0) is not None) == accepted


def test_several_federations_are_told_of_their_own_tasks() -> None:
    carrier = simulated(experiment(), None)
    first: Told = []
    second: Told = []
    listen(carrier, first, channel="0/")
    listen(carrier, second, channel="1/")
    play(
        carrier,
        (0.0, lambda: carrier.begin_round("0/", 1)),
        (0.0, lambda: carrier.begin_round("1/", 2)),
        (0.0, lambda: carrier.send(tasks_of(experiment(), range(2), "0/"))),
        (0.0, lambda: carrier.send(tasks_of(experiment(), range(1, 3), "1/"))),
    )
    assert first == [(1.0, "0/1.0", "arrived"), (2.0, "0/1.1", "held")], "in its round 1"
    assert second == [(2.0, "1/1.1", "arrived"), (3.0, "1/1.2", "arrived")], "in its round 2"


def test_waiting_for_nobody_takes_a_while() -> None:
    carrier = simulated(experiment(), None)
    carrier.run(carrier.nobody())
    assert carrier.now == EMPTY_SECONDS
