"""What every registered part promises. A new part enters by being registered.

``@part(seam, neutral={...}, example={...}, protocol=..., silent=...)``: with ``neutral`` it does nothing, with
``example`` it visibly does something (on that protocol), or it says why it is silent.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from motley.client.problems import Regression
from motley.core.bill import Bill
from motley.core.errors import ConflictError
from motley.core.hooks import HOOKS
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import PARTS, Hook, Method, Part, compose
from motley.core.types import Data, Round, Tree
from motley.engine.executor import Executor
from motley.engine.loop import run_task
from motley.engine.pool import Pool
from motley.methods import METHODS, make_method
from motley.runtime.assembly import setting_of
from motley.runtime.experiment import Given
from motley.runtime.launch import Run, launch, resume
from motley.server.method_server import MethodServer
from tests import tiny

NAMES = [entry.name for entry in PARTS if entry.factory.__module__.startswith("motley.")]
ROUNDS = 4


def example(name: str) -> Part:
    return PARTS.make(name, **PARTS[name].meta["example"])


def alone(name: str, part: Part | None = None) -> Method:
    """A part by itself, on the protocol it is made for."""
    return compose(part or example(name), protocol=PARTS[name].meta["protocol"])


def public() -> Data:
    """Samples that the server holds."""
    held = tiny.dataset(seed=2)
    return Data(held.x, held.y)


def world(method: Method, **changes: Any) -> dict[str, Any]:
    """Unequal, limited and slow clients; where a protocol knows late updates, some are late by rounds."""
    fleet = tiny.uneven_fleet()
    if method.protocol != "synchronous":
        late = {(client, number): (client + number) % 3 for client in range(6) for number in range(1, ROUNDS + 1)}
        fleet = fleet.with_(fortune=(*fleet.fortune, tiny.DelayRounds(late)))
    base = {"rounds": ROUNDS, "cohort": 4, "epochs": 2.0, "optimizer": "sgd(momentum=0.5, weight_decay=0.01)"}
    return {"method": method, "fleet": fleet, "public": public(), **base, **changes}


def train(method: Method, **changes: Any) -> Tensor:
    return tiny.run(**world(method, **changes)).params


@cache
def baseline(protocol: str | None) -> Tensor:
    return train(compose(make_method("fedavg"), protocol=protocol))


@cache
def by_loop(name: str) -> Tensor:
    return train(alone(name))


class Chameleon(Method):
    """A method that can be changed from outside while worker processes hold it."""

    def __init__(self, methods: tuple[Method, ...], chosen: Tensor) -> None:
        self.methods, self.chosen = methods, chosen
        super().__init__((), "synchronous", {}, "chameleon")

    def hooks(self, hook: str) -> tuple[tuple[str, Hook], ...]:
        return self.methods[int(self.chosen)].hooks(hook)

    def has(self, hook: str) -> bool:
        return self.methods[int(self.chosen)].has(hook)

    def __reduce__(self) -> tuple[Any, ...]:
        return Chameleon, (self.methods, self.chosen)

    def __deepcopy__(self, _: Any) -> Chameleon:
        return self


class Lent(tiny.Watched):
    """An executor that outlives the runs it serves."""

    def close(self) -> None:
        """Whoever lent it closes it."""


@pytest.fixture(scope="module")
def pool() -> Iterator[tuple[Executor, Tensor]]:
    """Two worker processes for all parts, and the number of the part they train with."""
    made = tiny.experiment(**world(alone(NAMES[0])))
    chosen = torch.zeros(1, dtype=torch.int64).share_memory_()
    training = replace(made.training, method=Chameleon(tuple(map(alone, NAMES)), chosen))
    workers = Pool(replace(made.site, training=training), 2)
    yield Lent(workers), chosen
    workers.close()


def test_there_are_parts() -> None:
    assert {"proximal", "control_variates", "mix_with_previous"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is(name: str) -> None:
    entry, part = PARTS[name], example(name)
    assert len(entry.summary) > 20
    assert "\n" not in entry.summary
    assert part.name == name
    assert part.seam == entry.meta["seam"]
    assert part.filled
    assert repr(part).startswith(f"{name}(")
    assert set(entry.meta["example"]) <= set(entry.parameters)
    assert set(entry.meta["neutral"] or {}) <= set(entry.parameters)
    assert PARTS.make(name).name == name, "defaults must be enough to make it"
    assert set(part.refuses) <= set(NAMES), "it refuses a part that does not exist"


@pytest.mark.parametrize("name", NAMES)
def test_it_pickles(name: str) -> None:
    method = compose(example(name))
    copy = pickle.loads(pickle.dumps(method))
    assert copy.parts == method.parts
    assert copy.parts[0].filled == method.parts[0].filled


@pytest.mark.parametrize("name", NAMES)
def test_it_differs_from_the_baseline(name: str) -> None:
    """Or it says why not, and then it leaves the model exactly as it is."""
    ours, plain = by_loop(name), baseline(PARTS[name].meta["protocol"])
    assert torch.isfinite(ours).all()
    if PARTS[name].meta["silent"]:
        assert torch.equal(ours, plain), "it is said to be silent, but it changes the model"
    else:
        same = ours.shape == plain.shape and torch.allclose(ours, plain, atol=1e-5)
        assert not same, "with its example arguments it does nothing"


@pytest.mark.parametrize("name", [name for name in NAMES if PARTS[name].meta["neutral"] is not None])
def test_its_neutral_setting_is_the_baseline(name: str) -> None:
    part = PARTS.make(name, **{**PARTS[name].meta["example"], **PARTS[name].meta["neutral"]})
    assert torch.equal(train(alone(name, part)), baseline(PARTS[name].meta["protocol"]))


@pytest.mark.parametrize("name", NAMES)
def test_its_state_survives_save_and_load(name: str, tmp_path: Path) -> None:
    """Stopped after the second round and resumed; client state goes to disk at once."""
    method = alone(name)
    given = world(method, state_memory_mb=0.001, checkpoint_seconds=0.0)
    federated = tiny.data()
    things = {key: given.pop(key) for key in ("method", "fleet", "public")}
    things |= {"data": federated, "net": tiny.network(federated)}

    def stop(record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(tiny.recipe(**given), tmp_path / "run", [stop], Given(**things))
    result = resume(tmp_path / "run", **things)
    assert [record.round for record in result.records] == list(range(1, ROUNDS + 1))
    assert torch.equal(result.params, by_loop(name))
    shutil.rmtree(tmp_path / "run")


def watched(hook: Hook, seen: list[Tree]) -> Hook:
    """A server hook that refuses to write into the state it is given; ``seen`` collects the states."""

    def call(*arguments: Any) -> Any:
        before = tree_map(torch.clone, arguments[0]) if arguments[0] is not None else None
        result = hook(*arguments)
        now, then = (tree_leaves(tree) for tree in (arguments[0], before))
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(now, then, strict=True))
        seen.append(arguments[0])
        return result

    return call


def with_state(name: str) -> list[str]:
    """The hooks of a part that are given its server state."""
    return [hook for hook in example(name).filled if HOOKS[hook].arguments[0] == "s"]


@pytest.mark.parametrize("name", [name for name in NAMES if with_state(name)])
def test_its_server_state_is_tensors_and_hooks_leave_it_alone(name: str) -> None:
    """Hooks return new state; they do not write into the old one."""
    part, seen = example(name), list[Tree]()
    watching: dict[str, Any] = {hook: watched(getattr(part, hook), seen) for hook in with_state(name)}
    assert torch.equal(train(alone(name, replace(part, **watching))), by_loop(name))
    assert seen
    assert all((state is None) == (part.init is None) for state in seen)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_clients_gives_the_same_as_one_by_one(name: str) -> None:
    """Also with plain SGD, for which executors take short cuts."""
    assert torch.allclose(train(alone(name), executor="batched"), by_loop(name), atol=1e-4)
    one_by_one, at_once = (train(alone(name), executor=executor, optimizer="sgd") for executor in ("loop", "batched"))
    assert torch.allclose(at_once, one_by_one, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_worker_processes_give_the_same_bit_for_bit(name: str, pool: tuple[Executor, Tensor]) -> None:
    if example(name).adapt is not None:  # the model is another one, which these workers do not hold
        assert torch.equal(train(alone(name), executor="pool(workers=2)"), by_loop(name))
        return
    workers, chosen = pool
    chosen[0] = NAMES.index(name)
    run = Run(tiny.experiment(**world(alone(name))), executor=workers)
    assert torch.equal(run.go().params, by_loop(name))


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_numbers_or_says_that_it_needs_labels(name: str) -> None:
    given = world(alone(name), federated=tiny.numbers(), problem=Regression(), rounds=2)
    if "labels" in example(name).needs:
        with pytest.raises(
            ConflictError, match=f"The part '{name}' needs class labels, which the problem 'regression'"
        ):
            tiny.run(**given)
        return
    one_by_one, at_once = (tiny.run(**given, executor=executor) for executor in ("loop", "batched"))
    assert torch.isfinite(one_by_one.params).all()
    assert torch.allclose(at_once.params, one_by_one.params, atol=1e-4)


class Counted:
    """Counts the samples that go through networks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples = 0
        for name in ("forward", "train"):
            monkeypatch.setattr(Network, name, self._counting(getattr(Network, name)))

    def _counting(self, passes: Any) -> Any:
        def call(net: Network, tensors: list[Tensor], x: Tensor, *more: Any) -> Any:
            self.samples += len(x)
            return passes(net, tensors, x, *more)

        return call


@pytest.mark.parametrize("name", NAMES)
def test_its_bill_counts_the_passes_it_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass over a client's samples beside those of its steps is on the bill, and nothing else is."""
    e = tiny.experiment(**world(alone(name), batch_size=1))
    net = e.net
    server = MethodServer(e.method, setting_of(e, net.initial()))
    rnd = Round(1, e.key, 4, 0.0)
    a = tiny.assignment(1, net=net, epochs=2.0, down=server.send(rnd), dials=server.dials(rnd))
    net.acts(e.dataset.inputs(e.dataset.x[:2]))
    counted = Counted(monkeypatch)
    report = run_task(e.site, a, e.site.facts([a]).row(0), None).report
    bill = Bill()
    for _, hook in e.method.hooks("bill"):
        bill = hook(net, e.cost, e.site.facts([a]).row(0), bill)
    trained = report.steps if bool(report.trained.any()) else 0
    assert counted.samples == trained * (1 + bill.forwards) + report.n * (bill.passes + bill.gradients)


@pytest.mark.parametrize("name", NAMES)
def test_it_composes_with_every_other_part_or_the_refusal_names_both(name: str) -> None:
    for other in NAMES:
        if other == name:
            continue
        if composes(name, other):
            assert [part.name for part in compose(example(name), example(other)).parts] == [name, other]
            continue
        for pair in ((name, other), (other, name)):
            with pytest.raises(ConflictError) as caught:
                compose(*map(example, pair))
            assert f"'{name}'" in str(caught.value)
            assert f"'{other}'" in str(caught.value)
            assert "\n" not in str(caught.value)


def pairs() -> list[tuple[str, str]]:
    """A sample of pairs that compose; every part is in at least one of them where it can be."""
    fine = [(a, b) for a, b in combinations(NAMES, 2) if composes(a, b)]
    chance = Key.root(6).fold("pairs").generator()
    chosen: list[tuple[str, str]] = []
    missing = set(NAMES)
    for index in chance.permutation(len(fine)).tolist():
        if len(chosen) < 12 or missing & set(fine[index]):
            chosen.append(fine[index])
            missing -= set(fine[index])
    return sorted(chosen)


def composes(a: str, b: str) -> bool:
    try:
        compose(example(a), example(b))
    except ConflictError:
        return False
    return True


@pytest.mark.parametrize(("a", "b"), pairs())
def test_two_parts_run_together(a: str, b: str) -> None:
    protocols = {PARTS[name].meta["protocol"] for name in (a, b)} - {None}
    params = train(compose(example(a), example(b), protocol=min(protocols, default=None)), rounds=2)
    assert torch.isfinite(params).all()


def with_norm() -> Network:
    return Network(nn.Sequential(nn.Linear(9, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)))


@pytest.mark.parametrize("name", sorted(METHODS.entries))
def test_every_method_runs(name: str) -> None:
    """With lost, limited and slow clients."""
    method = make_method(name)
    fleet = tiny.uneven_fleet()
    unlucky = fleet.with_(fortune=(*fleet.fortune, tiny.Lost((1, 1), (3, 2))))
    net = with_norm() if name == "fedbn" else None  # which keeps norms, so there must be one
    result = tiny.run(method, fleet=unlucky, net=net, public=public(), rounds=2, cohort=5, epochs=2.0)
    assert torch.isfinite(result.params).all()
    assert len(result.records) == 2
    assert METHODS[name].summary
    assert method.name.startswith(name)


def test_every_hook_is_filled_or_known() -> None:
    """The table of hooks names nothing that a part cannot fill."""
    assert set(HOOKS) <= set(Part.__dataclass_fields__)
