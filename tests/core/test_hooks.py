"""Hooks have types: how they are called is checked where a part is made, and what they are given is what they see."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from motley.core.errors import HookError
from motley.core.hooks import HOOKS
from motley.core.network import Network
from motley.core.part import PARTS, Method, Part, compose, part
from motley.core.schedule import Linear, Schedule
from motley.core.types import Client, Data, Facts, Mine, Round, Setting, Tree, Updates
from motley.runtime.launch import Run
from tests import tiny


def written(arguments: str) -> Callable[..., Any]:
    """A function with these arguments."""
    made: Callable[..., Any] = eval(f"lambda {arguments}: None")
    return made


def made(name: str, hook: Callable[..., Any]) -> Part:
    filled: dict[str, Any] = {name: hook}
    return Part(name="mine", **filled)


# ------------------------------------------------------------------------------------- how they are called


def test_every_hook_has_a_type_and_a_part_is_annotated_with_it() -> None:
    hints = typing.get_type_hints(Part)
    for name, rule in HOOKS.items():
        assert hints[name] == rule.kind | None
        assert rule.decides
        assert rule.kind.__doc__


def test_client_hooks_see_their_own_things_and_server_hooks_the_round() -> None:
    told = {"net", "cost", "facts", "bill", "start", "module", "key", "model", "mine"}
    for name, rule in HOOKS.items():
        if rule.place == "client":
            assert rule.arguments[:2] == ("c", "me") or set(rule.arguments) <= told, name
        else:
            assert rule.arguments[:2] == ("s", "rnd") or name in ("init", "decode"), name


@pytest.mark.parametrize("name", HOOKS)
def test_too_few_too_many_and_other_arguments_are_refused(name: str) -> None:
    right = HOOKS[name].arguments
    for wrong in (right[:-1], (*right, "more"), (*right[:-1], "other"), ("self", *right)):
        with pytest.raises(HookError) as caught:
            made(name, written(", ".join(wrong)))
        assert str(caught.value).startswith(
            f"The hook '{name}' of the part 'mine' takes ({', '.join(wrong)}); it must take ({', '.join(right)}): "
        )


@pytest.mark.parametrize("name", HOOKS)
def test_arguments_that_are_not_read_and_further_ones_with_defaults_are_fine(name: str) -> None:
    right = HOOKS[name].arguments
    unread = (f"_{argument}" for argument in right)
    for fine in (", ".join(right), ", ".join(unread), ", ".join(right) + ", own=3", "*arguments", "*a, **b"):
        assert made(name, written(fine)).filled == (name,)


def test_arguments_in_another_order_are_refused() -> None:
    with pytest.raises(HookError, match=r"The hook 'merge' of the part 'mine' takes \(s, rnd, updates, params, weigh"):
        made("merge", written("s, rnd, updates, params, weights"))


@pytest.fixture
def registered() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(PARTS.entries)
    yield
    PARTS.entries.clear()
    PARTS.entries.update(before)


@pytest.mark.usefixtures("registered")
def test_a_part_is_refused_where_it_is_registered() -> None:
    def prox(mu: float = 0.1) -> Part:
        """Forgets an argument."""
        return Part(penalty=written("c, batch, out"))

    with pytest.raises(
        HookError, match=r"hook 'penalty' of the part 'prox' takes \(c, batch, out\); it must take \(c, me"
    ):
        part("objective")(prox)
    assert "prox" not in PARTS


@pytest.mark.usefixtures("registered")
def test_a_part_that_cannot_be_made_without_arguments_is_checked_when_it_is_made() -> None:
    @part("objective")
    def needy(mu: float) -> Part:
        """Has no default."""
        return Part(send=written("s"), dials={"mu": mu})

    with pytest.raises(HookError, match="hook 'send' of the part 'needy'"):
        PARTS.make("needy", mu=1.0)


# ------------------------------------------------------------------------------------- what they see


@part("objective")
def sees_everything(gain: Schedule = 2.0) -> Part:
    """Steps of a size that says which numbers a client has seen, and sends these up."""

    def init(setting: Setting) -> Tree:
        return {"sum": torch.tensor(3.0), "seen": torch.zeros(setting.n_clients, 5)}

    def send(s: Tree, rnd: Round) -> Tree:
        return s["sum"] * rnd.dials["gain"]

    def keep(net: Network, start: Tensor, facts: Facts) -> Tree:
        return facts.client.to(torch.float32)

    def begin(c: Client, me: Mine, data: Data) -> Client:
        return me.note(c, me.down + me.own)

    def gradient(c: Client, me: Mine, grad: Tensor) -> Tensor:
        return torch.ones_like(grad) * me.dials["gain"] * c.step

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, Tree]:
        row = [me.down, me.own, me.notes, me.dials["gain"], c.step.to(torch.float32)]
        return me.keep(c, me.own + 100.0), torch.stack(row)

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        return {"sum": s["sum"] + rnd.dials["gain"], "seen": s["seen"].index_copy(0, updates.ids, updates.extra)}

    return Part(
        init=init, send=send, keep=keep, begin=begin, gradient=gradient, report=report, observe=observe,
        dials={"gain": gain},
    )  # fmt: skip


PARTS.entries.pop("sees_everything")  # it is no part of Motley


def trained(method: Method, executor: str) -> tuple[Tensor, Tree]:
    """The change of the model in two rounds with all clients, and the part's server state."""
    e = tiny.experiment(method, rounds=2, cohort=6, epochs=2.0, executor=executor)
    run = Run(e)
    change = run.go().params - e.net.initial()
    return change, run.fed.ledger.server.state["sees_everything"]


@pytest.mark.parametrize("executor", ["loop", "pool(workers=2)", "batched"])
def test_a_part_finds_what_is_its_own(executor: str) -> None:
    """gain is 1.5 and 2; the sum is 3 and then 4.5; a client keeps its number, and 100 more after every task."""
    change, state = trained(compose(sees_everything(gain=Linear(1.0, 0.5))), executor)
    assert float(state["sum"]) == 3.0 + 1.5 + 2.0
    steps = [2.0 * -(-n // 4) for n in tiny.SIZES]
    down, own = 4.5 * 2.0, [100.0 + client for client in range(6)]
    expected = [[down, kept, down + kept, 2.0, n] for kept, n in zip(own, steps, strict=True)]
    assert state["seen"].tolist() == expected
    far = [n * (n - 1) / 2 for n in steps]  # 0 + 1 + ... over the steps that were done before each one
    mean = sum(n * one for n, one in zip(tiny.SIZES, far, strict=True)) / sum(tiny.SIZES)
    torch.testing.assert_close(change, torch.full_like(change, -0.1 * (1.5 + 2.0) * mean), rtol=1e-5, atol=1e-5)


def test_where_nothing_was_sent_kept_or_noted_there_is_none() -> None:
    seen: list[Mine] = []

    def begin(c: Client, me: Mine, data: Data) -> Client:
        seen.append(me)
        return c

    tiny.run(compose(Part(name="empty", begin=begin)), rounds=1, cohort=1)
    assert seen == [Mine("empty", None, None, None, {})]


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("optimizer", ["sgd", "sgd(momentum=0.5)"])
def test_steps_are_counted_where_no_hook_reads_them_in_between(executor: str, optimizer: str) -> None:
    def report(c: Client, me: Mine, data: Data) -> tuple[Client, Tree]:
        return c, c.step - c.facts.steps

    def observe(s: Tree, rnd: Round, updates: Updates) -> Tree:
        assert updates.extra.tolist() == [0.0] * len(updates)
        return torch.tensor(float(len(updates)))

    run = Run(tiny.experiment(
        compose(Part(name="counts", report=report, observe=observe)), epochs=1.6, rounds=1, cohort=6,
        executor=executor, optimizer=optimizer,
    ))  # fmt: skip
    run.go()
    assert float(run.fed.ledger.server.state["counts"]) == 6.0


def test_the_numbers_of_a_round_are_resolved_on_the_server() -> None:
    seen: list[float] = []

    def weigh(s: Tree, rnd: Round, updates: Updates) -> Tensor:
        seen.append(rnd.dials["power"])
        return updates.n ** rnd.dials["power"]

    tiny.run(compose(Part(name="by_size", weigh=weigh, dials={"power": Linear(0.0, 0.5), "other": 1})), rounds=3)
    assert seen == [0.5, 1.0, 1.5]
    assert all(type(number) is float for number in seen)
