"""What a task costs, worked out by hand: seconds of a client whose parts make further passes or send something else.

The model has layers of 9 x 6, 6 x 5 and 5 x 4: 208 operations forward, 208 for its weights' gradients and 100 to carry
the gradient from layer to layer, 516 for a sample; 119 numbers are 476 bytes. Client 1 has 16 samples, computes 2e6
operations and sends 4e4 bytes in a second, and receives 2e5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from motley.client.problems import make_problem
from motley.core.bill import Bill, Cost
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Part, compose
from motley.core.types import Client, Facts, Mine, Round, Tree
from motley.methods import make_method
from motley.nets.cost import flops
from motley.nets.zoo import build
from motley.runtime.assembly import setting_of
from motley.runtime.costs import Costs, Work
from motley.runtime.experiment import Experiment
from motley.server.method_server import MethodServer
from tests import tiny

FORWARD, STEP, SIZE = 208.0, 516.0, 476.0
SAMPLES = 16
EPOCHS = 2.0


def seconds(operations: float, down: float = SIZE, up: float = SIZE) -> float:
    return operations / 2e6 + down / 2e5 + up / 4e4


def experiment(method: str | Part, **changes: Any) -> Experiment:
    made = make_method(method) if isinstance(method, str) else compose(method)
    return tiny.experiment(made, fleet=tiny.uneven_fleet().with_(fortune=()), epochs=EPOCHS, **changes)


def foretold(e: Experiment, epochs: float = EPOCHS, spent: float | None = None, **work: Any) -> float:
    """What the task of client 1 in the first round is said to take, with uploads of nothing but the model."""
    server = MethodServer(e.method, setting_of(e, e.net.initial()))
    task = tiny.assignment(1, net=e.net, epochs=epochs, down=server.send(Round(1, e.key, 4, 0.0)))
    (found,) = Costs(e.site, e.fleet, e.cost).seconds([Work(task, epochs if spent is None else spent, 0.0, **work)])
    return found


def test_the_model_is_counted_right() -> None:
    e = experiment("fedavg")
    assert (sum(e.cost.forward), flops(e.cost), 4 * e.net.size) == (FORWARD, STEP, SIZE)
    assert e.fleet.flops[1] == 2e6
    assert e.data.sizes[1] == SAMPLES


CASES: list[tuple[str, float]] = [
    ("fedavg", EPOCHS * SAMPLES * STEP),
    ("fedprox", EPOCHS * SAMPLES * STEP),
    ("moon", EPOCHS * SAMPLES * (STEP + 2 * FORWARD)),  # the received and the previous model see every minibatch
    ("importance", EPOCHS * SAMPLES * STEP + SAMPLES * STEP),  # the gradient of every minibatch after training
    ("moon+importance", EPOCHS * SAMPLES * (STEP + 2 * FORWARD) + SAMPLES * STEP),
]


@pytest.mark.parametrize(("method", "operations"), CASES, ids=[method for method, _ in CASES])
def test_further_passes_take_time(method: str, operations: float) -> None:
    assert foretold(experiment(method)) == pytest.approx(seconds(operations))


def test_prototypes_take_two_passes_and_travel() -> None:
    """Four classes of five features, and which of them are known, go down."""
    operations = EPOCHS * SAMPLES * STEP + 2 * SAMPLES * FORWARD
    assert foretold(experiment("prototype_augmentation")) == pytest.approx(
        seconds(operations, down=SIZE + 4 * (4 * 5 + 4))
    )


def test_passes_once_per_task_do_not_grow_with_its_epochs() -> None:
    e = experiment("importance")
    short, long = (foretold(e, epochs) for epochs in (1.0, 3.0))
    assert long - short == pytest.approx(2.0 * SAMPLES * STEP / 2e6)


def test_frozen_layers_save_the_steps_but_not_the_further_passes() -> None:
    """Without the first two layers: 208 forward, 40 for the weights of the last."""
    e = experiment("moon")
    found = foretold(e, trained=torch.tensor([0.0, 0.0, 1.0]))
    last = 4 * (5 * 4 + 4)
    assert found == pytest.approx(seconds(EPOCHS * SAMPLES * (FORWARD + 40 + 2 * FORWARD), up=last))


@pytest.mark.parametrize(
    ("method", "operations", "down", "up"),
    [
        ("fedavg", EPOCHS * SAMPLES * STEP, 0, 0),
        ("moon", EPOCHS * SAMPLES * (STEP + 2 * FORWARD), 0, 0),
        ("prototype_augmentation", EPOCHS * SAMPLES * STEP + 2 * SAMPLES * FORWARD, 24, 24),  # sums and counts go up
        ("importance(floor=1.0)", EPOCHS * SAMPLES * STEP + SAMPLES * STEP, 0, 1),  # a score goes up
        ("scaffold", EPOCHS * SAMPLES * STEP, 119, 119),  # a control variate goes down, its change up
    ],
)
def test_the_clock_of_a_run_follows_the_bill(method: str, operations: float, down: int, up: int) -> None:
    """One round with client 1 alone; everything that was sent counts as it was."""
    alone = tiny.uneven_fleet().with_(fortune=(), presence=(tiny.Present({1: [1]}),))
    result = tiny.run(make_method(method), fleet=alone, epochs=EPOCHS, cohort=1, rounds=1)
    (record,) = result.records
    assert (record.bytes_down, record.bytes_up) == (SIZE + 4 * down, SIZE + 4 * up)
    assert record.virtual_time == pytest.approx(seconds(operations, record.bytes_down, record.bytes_up))


def test_turns_of_two_players() -> None:
    """A generator of 3 x 8 and 8 x 9, a critic of 9 x 8 and 8 x 1: 192 and 160 operations forward for a sample.

    Two turns of the critic take 2 (192 + 12 * 160), the generator's one 3 * 192 + 2 * 160.
    """
    net = build("gan_mlp(latent=3, hidden=[8], conditional=false)", (9,), 4, 0, Key.root(0))
    e = experiment("fedavg", net=net, problem=make_problem("wgan_gp(critic_steps=2)"))
    step = (2 * (192 + 12 * 160) + 3 * 192 + 2 * 160) / 3
    size = 4 * net.size
    assert foretold(e) == pytest.approx(seconds(EPOCHS * SAMPLES * step, size, size))


# ------------------------------------------------------------------------------------- a bill of one's own


def billed(**more: float) -> Part:
    def bill(net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        return bill.plus(**more)

    return Part(name="costly", bill=bill)


@pytest.mark.parametrize(
    ("more", "operations"),
    [
        ({"forwards": 1.0}, EPOCHS * SAMPLES * FORWARD),
        ({"backwards": 1.0}, EPOCHS * SAMPLES * (STEP - FORWARD)),
        ({"passes": 3.0}, 3 * SAMPLES * FORWARD),
        ({"gradients": 0.5}, 0.5 * SAMPLES * STEP),
    ],
    ids=str,
)
def test_each_line_of_a_bill(more: dict[str, float], operations: float) -> None:
    plain = EPOCHS * SAMPLES * STEP
    assert foretold(experiment(billed(**more))) == pytest.approx(seconds(plain + operations))


def test_a_part_may_send_something_in_place_of_the_model() -> None:
    def bill(net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        return bill._replace(down=float(cost.bytes[-1]))  # the last layer alone

    e = experiment(Part(name="head_only", bill=bill))
    assert foretold(e) == pytest.approx(seconds(EPOCHS * SAMPLES * STEP, down=4 * 24))


def test_a_bill_may_depend_on_the_client() -> None:
    def bill(net: Network, cost: Cost, facts: Facts, bill: Bill) -> Bill:
        return bill.plus(passes=float(facts.n))

    assert foretold(experiment(Part(name="by_size", bill=bill))) == pytest.approx(
        seconds(EPOCHS * SAMPLES * STEP + SAMPLES * SAMPLES * FORWARD)
    )


def test_what_is_encoded_counts_as_it_is_sent() -> None:
    def encode(c: Client, me: Mine, payload: Tree) -> Tree:
        return {"half": payload.to(torch.float16)}

    def decode(payload: Tree) -> Tensor:
        found: Tensor = payload["half"].to(torch.float32)
        return found

    small = compose(Part(name="halved", encode=encode, decode=decode))
    result = tiny.run(small, fleet=tiny.uneven_fleet().with_(fortune=()), rounds=1, cohort=4)
    assert result.records[0].bytes_up == 4 * 119 * 2
    assert result.records[0].bytes_down == 4 * SIZE


def test_what_is_encoded_takes_as_long_as_it_is_sent() -> None:
    """On slow links and quick devices: whole weights down, a tenth of them up, with an index each."""
    links = tiny.uneven_fleet().with_(fortune=())
    slow = links.with_(up=np.full(links.n_clients, 1e3), down=np.full(links.n_clients, 1e9))
    seconds = {
        name: tiny.run(make_method(name), fleet=slow, rounds=1, cohort=4).records[0].virtual_time
        for name in ("fedavg", "fedavg+largest_changes(share=0.1)")
    }
    sizes = {
        name: tiny.run(make_method(name), fleet=slow, rounds=1, cohort=4).records[0].bytes_up / 4 for name in seconds
    }
    whole, some = seconds
    assert seconds[whole] - seconds[some] == pytest.approx((sizes[whole] - sizes[some]) / 1e3, rel=1e-6)
    assert sizes[some] < sizes[whole] / 3
