"""Whole rounds against plain loops written from the papers: modules, `torch.optim`, one client at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from motley.client.minibatch import minibatches, n_steps
from motley.core.types import Data
from motley.data.public import balanced
from motley.runtime.experiment import Experiment
from motley.runtime.launch import Run
from tests.equations.small import N_CLASSES, small_experiment, small_public

Loss = Callable[[nn.Module, nn.Module, Tensor, Tensor], Tensor]
State = dict[str, Tensor]


class Oracle:
    """Synchronous rounds over all clients with a loss of its own."""

    def __init__(self, method: str, **changes: Any) -> None:
        self.experiment: Experiment = small_experiment(method, **changes)
        self.model: nn.Module = copy.deepcopy(self.experiment.net.module)
        self.clients = [self.experiment.data.client(i) for i in range(4)]
        self.limited = self.experiment.fleet.limited

    def counts(self, i: int) -> list[int]:
        return [int((self.clients[i].y == c).sum()) for c in range(N_CLASSES)]

    def local(self, t: int, i: int, loss: Loss, names: Callable[[str], bool] = lambda _: True) -> nn.Module:
        """Client i's model after its epochs of round t; only parameters whose names pass are trained."""
        recipe, data = self.experiment.recipe, self.clients[i]
        model = copy.deepcopy(self.model)
        free = [p for name, p in model.named_parameters() if names(name)]
        optimizer = torch.optim.SGD(free, recipe.lr, momentum=0.5, weight_decay=0.01)
        key = self.experiment.key.fold("client", t, i).tensor()
        steps = n_steps(recipe.epochs, len(data.y), recipe.batch_size)
        for batch, _ in minibatches(key, data, recipe.batch_size, steps):
            model.zero_grad()
            loss(model, self.model, batch.x, batch.y).backward()
            optimizer.step()
        return model

    def mean(self, models: dict[int, nn.Module]) -> None:
        """The next global model: the mean weighted by samples."""
        total = sum(len(self.clients[i].y) for i in models)
        new: State = {
            name: sum(len(self.clients[i].y) / total * models[i].state_dict()[name] for i in models)  # type: ignore[misc]
            for name in self.model.state_dict()
        }
        self.model.load_state_dict(new)

    def check(self) -> None:
        """The library's run gives the same model."""
        fast = self.experiment.net.layout.unflatten(Run(self.experiment).go().params)
        start = self.experiment.net.layout.unflatten(self.experiment.net.initial())
        for name, slow in self.model.named_parameters():
            assert torch.allclose(fast[name], slow, atol=2e-6), name
        assert any(not torch.equal(fast[name], start[name]) for name in start)


def features(model: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = model.features(x)  # type: ignore[operator]
    return found


def prior_loss(z: Tensor, y: Tensor, prior: list[float]) -> Tensor:
    """Eq. 8 and 9 as they stand; prior 0 means that the class is not in the sum."""
    losses = []
    for row, label in zip(z, y.tolist(), strict=True):
        below = sum((prior[c] * row[c].exp() for c in range(len(prior)) if prior[c] > 0), torch.zeros(()))
        losses.append(-(prior[label] * row[label].exp() / below).log())
    return torch.stack(losses).mean()


def smoothed(counts: list[int], eps: float) -> list[float]:
    return [(1 - eps) * n / sum(counts) + eps / len(counts) for n in counts]


def prototypes(model: nn.Module, data: Data) -> dict[int, Tensor]:
    with torch.no_grad():
        h = features(model, data.x)
    return {c: h[data.y == c].mean(0) for c in range(N_CLASSES) if bool((data.y == c).any())}


@pytest.mark.parametrize(("eps", "keep_absent", "missing"), [(0.01, False, ()), (0.0, False, (3,)), (0.3, True, (3,))])
def test_rebafl(eps: float, keep_absent: bool, missing: tuple[int, ...]) -> None:
    """Algorithm 1; where client 3 is dropped, class 3 loses a part of its samples."""
    spec = f"rebafl(eps={eps}, mu=0.5, keep_absent={keep_absent})" + ("+drop_limited" if missing else "")
    o = Oracle(spec, limited=missing)
    shared: dict[int, Tensor] = {}
    for t in (1, 2, 3):
        trained: dict[int, nn.Module] = {}
        for i in (i for i in range(4) if i not in missing):
            known = {**shared, **prototypes(o.model, o.clients[i])}
            prior = smoothed(o.counts(i), eps)

            def loss(m: nn.Module, _: nn.Module, x: Tensor, y: Tensor, prior=prior, known=known) -> Tensor:  # type: ignore[no-untyped-def]
                h = features(m, x)
                value = prior_loss(m.head(h), y, prior)  # type: ignore[operator]
                moved, labels = [], []
                for j in range(len(y)):
                    if j % N_CLASSES in known:
                        moved.append(h[j].detach() + known[j % N_CLASSES] - known[int(y[j])])
                        labels.append(j % N_CLASSES)
                if not moved:
                    return value
                again = smoothed([labels.count(c) for c in range(N_CLASSES)], eps)
                return value + 0.5 * prior_loss(m.head(torch.stack(moved)), torch.tensor(labels), again)  # type: ignore[operator]

            trained[i] = o.local(t, i, loss)
        fresh: dict[int, Tensor] = {}
        for c in range(N_CLASSES):
            holders = {i: n for i in trained if (n := o.counts(i)[c])}
            if holders:
                total = sum(holders.values())
                fresh[c] = sum(n / total * prototypes(trained[i], o.clients[i])[c] for i, n in holders.items())  # type: ignore[assignment]
        shared = {**(shared if keep_absent else {}), **fresh}
        o.mean(trained)
    o.check()


def test_moon() -> None:
    o = Oracle("moon(mu=2.0, temperature=0.5)")
    before: dict[int, nn.Module] = {}
    for t in (1, 2, 3):
        trained: dict[int, nn.Module] = {}
        for i in range(4):
            previous = before.get(i, o.model)

            def loss(m: nn.Module, received: nn.Module, x: Tensor, y: Tensor, previous=previous) -> Tensor:  # type: ignore[no-untyped-def]
                h = features(m, x)
                near = (cosine_similarity(h, features(received, x).detach()) / 0.5).exp()
                far = (cosine_similarity(h, features(previous, x).detach()) / 0.5).exp()
                return cross_entropy(m.head(h), y) + 2.0 * -(near / (near + far)).log().mean()  # type: ignore[operator]

            trained[i] = o.local(t, i, loss)
        before = trained
        o.mean(trained)
    o.check()


def plain(m: nn.Module, _: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(m(x), y)


def test_fedbabu() -> None:
    o = Oracle("fedbabu")
    first = o.model.head.weight.clone()  # type: ignore[union-attr, operator]
    for t in (1, 2, 3):
        o.mean({i: o.local(t, i, plain, lambda name: not name.startswith("head")) for i in range(4)})
    o.check()
    assert torch.allclose(o.model.head.weight, first, atol=1e-6)  # type: ignore[union-attr, arg-type]


def test_fedrs() -> None:
    o = Oracle("fedrs(alpha=0.3)")
    for t in (1, 2, 3):
        trained = {}
        for i in range(4):
            scale = torch.tensor([1.0 if n else 0.3 for n in o.counts(i)])
            trained[i] = o.local(t, i, lambda m, _, x, y, scale=scale: cross_entropy(m(x) * scale, y))  # type: ignore[misc]
        o.mean(trained)
    o.check()


def test_fedlc() -> None:
    o = Oracle("fedlc(tau=1.5)")
    for t in (1, 2, 3):
        trained = {}
        for i in range(4):
            weight = [math.exp(-1.5 * n**-0.25) if n else 0.0 for n in o.counts(i)]
            trained[i] = o.local(t, i, lambda m, _, x, y, w=weight: prior_loss(m(x), y, w))  # type: ignore[misc]
        o.mean(trained)
    o.check()


@pytest.mark.parametrize("whole", [True, False])
def test_ama_fes(whole: bool) -> None:
    """Eq. 2, 3 and 5 with alpha = alpha0 + eta t; clients 1 and 2 are limited."""
    o = Oracle(f"ama_fes(alpha0=0.1, eta=0.2, maximum=0.6, whole={whole})", limited=(1, 2))
    for t, alpha in ((1, 0.3), (2, 0.5), (3, 0.6)):
        old = copy.deepcopy(o.model.state_dict())
        trained = {
            i: o.local(t, i, plain, lambda name, i=i: not o.limited[i] or name.startswith("head"))  # type: ignore[misc]
            for i in range(4)
        }
        o.mean(trained)
        averaged = copy.deepcopy(o.model.state_dict())
        if not whole:
            o.mean({i: trained[i] for i in (0, 3)})
            body = o.model.state_dict()
            averaged = {name: averaged[name] if name.startswith("head") else body[name] for name in body}
        o.model.load_state_dict({name: alpha * old[name] + (1 - alpha) * averaged[name] for name in old})
    o.check()


def test_naive_fl_leaves_limited_clients_out() -> None:
    o = Oracle("naive_fl", limited=(0, 2))
    for t in (1, 2, 3):
        o.mean({i: o.local(t, i, plain) for i in (1, 3)})
    o.check()


def test_naive_fl_without_anybody_keeps_the_model() -> None:
    experiment = small_experiment("naive_fl", limited=(0, 1, 2, 3))
    result = Run(experiment).go()
    assert torch.equal(result.params, experiment.net.initial())


def test_fedprox_with_less_work_on_limited_clients() -> None:
    """Eq. 4 has no 1/2; limited clients train one of two epochs."""
    o = Oracle("fedprox_limited(rho=0.3, fraction=0.5)", limited=(0, 2))

    def loss(m: nn.Module, received: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        apart = sum((a - b.detach()).square().sum() for a, b in zip(m.parameters(), received.parameters(), strict=True))
        return cross_entropy(m(x), y) + 0.3 * apart

    whole = o.experiment.recipe
    half = whole.model_copy(update={"epochs": 1.0})
    for t in (1, 2, 3):
        trained = {}
        for i in range(4):
            object.__setattr__(o.experiment, "recipe", half if o.limited[i] else whole)
            trained[i] = o.local(t, i, loss)
        object.__setattr__(o.experiment, "recipe", whole)
        o.mean(trained)
    o.check()


def test_fedavg_with_head_retrained_on_the_server() -> None:
    o = Oracle("fedavg_ft(per_class=3, steps=4, lr=0.2)")
    held = balanced(small_public(), N_CLASSES, 3, o.experiment.key)
    assert torch.bincount(held.y).tolist() == [3] * N_CLASSES
    for t in (1, 2, 3):
        o.mean({i: o.local(t, i, plain) for i in range(4)})
        head = torch.optim.SGD(o.model.head.parameters(), 0.2)  # type: ignore[union-attr]
        for _ in range(4):
            head.zero_grad()
            plain(o.model, o.model, held.x, held.y).backward()
            head.step()
    o.check()
