"""RADFed's Algorithms 1 and 2 as plain slow loops, written from the paper, against the protocol and the parts."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from motley.core.keys import Key, fold_in, permutation
from motley.runtime.experiment import Experiment, initial_params, prepare
from motley.runtime.launch import Run
from motley.runtime.recipe import load

S, T, M, LR, BATCH = 3, 2, 4, 0.1, 8


def experiment(method: str) -> Experiment:
    recipe = load(
        "digits",
        {
            "method": method, "clients": 9, "cohort": M, "rounds": S * T, "epochs": 2, "batch_size": BATCH, "lr": LR,
            "model": "mlp(hidden=[8])", "executor": "loop",
        },
    )  # fmt: skip
    return prepare(recipe)


def module_of(e: Experiment, w: Tensor) -> nn.Module:
    """A plain torch module with the weights ``w``."""
    module = copy.deepcopy(e.net.module)
    named = e.net.layout.unflatten(w.clone())
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(named[name])
    return module


def vector_of(e: Experiment, module: nn.Module) -> Tensor:
    return e.net.layout.flatten({name: p.detach() for name, p in module.named_parameters()})


def client_update(e: Experiment, k: int, w: Tensor, number: int, rho: float = 0.0) -> tuple[Tensor, float]:
    """ClientUpdate(k, w') of Algorithm 2 with torch.optim: two epochs of minibatch SGD; then the score p."""
    data = e.data.client(k)
    module = module_of(e, w)
    received = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    key = e.key.fold("client", number, k).tensor()
    for epoch in range(2):
        order = permutation(fold_in(key, epoch), len(data.y))
        for rows in order.split(BATCH):
            optimizer.zero_grad()
            loss = cross_entropy(module(data.x[rows]), data.y[rows])
            if rho:
                loss = loss + rho / 2 * sum(
                    ((p - q) ** 2).sum() for p, q in zip(module.parameters(), received, strict=True)
                )
            loss.backward()
            optimizer.step()
    scores = []
    for x, y in zip(data.x.split(BATCH), data.y.split(BATCH), strict=True):
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        scores.append(sum(float((p.grad**2).sum()) for p in module.parameters() if p.grad is not None))
    return vector_of(e, module), sum(scores) / len(scores)


def sample(e: Experiment, number: int, p: np.ndarray[Any, Any] | None) -> list[int]:
    """m clients: uniformly, or one by one in proportion to p with the winner of an exponential race each time."""
    rng = e.key.fold("round", number).fold("select").generator()
    if p is None:
        return [int(i) for i in rng.choice(9, size=M, replace=False)]
    clocks = [-math.log(u) for u in rng.uniform(np.finfo(np.float64).tiny, 1.0, 9)]
    left = list(range(9))
    chosen = []
    for _ in range(M):
        first = min(left, key=lambda i: clocks[i] / p[i])
        left.remove(first)
        chosen.append(first)
    return chosen


def walk(
    e: Experiment, rho: float = 0.0, gamma: float | None = None, alpha: float = 1.0, eta: float | None = None
) -> Tensor:
    """Algorithm 1, with the options of Algorithm 2."""
    w = initial_params(e)
    p = np.ones(9)
    m_t, v_t, tau = torch.zeros_like(w), torch.full_like(w, 0.01), 1e-2
    number = 0
    for _ in range(T):
        models = [w.clone() for _ in range(M)]
        for s in range(S):
            number += 1
            U = sample(e, number, p if gamma is not None else None)
            deal = list(range(M))
            if s > 0:
                deal = e.key.fold("round", number).fold("redistribute").generator().permutation(M).tolist()
            for client, i in zip(U, deal, strict=True):
                models[i], new = client_update(e, client, models[i], number, rho)
                if gamma is not None:
                    p[client] = (1 - gamma) * p[client] + gamma * new
        average = torch.stack(models).mean(0)
        if eta is None:
            w = alpha * average + (1 - alpha) * w
        else:
            delta = torch.stack([model - w for model in models]).mean(0)
            m_t = 0.9 * m_t + 0.1 * delta
            v_t = 0.99 * v_t + 0.01 * delta**2
            w = w + eta * m_t / (v_t.sqrt() + tau)
    return w


CASES: list[tuple[str, dict[str, Any]]] = [
    (f"radfed(S={S})", {}),
    (f"radfedp(S={S}, rho=0.5)", {"rho": 0.5}),
    (f"radfedm(S={S}, alpha=0.6)", {"alpha": 0.6}),
    (f"radfeda(S={S}, eta=0.05, tau=0.01, v0=0.01)", {"eta": 0.05}),
    (f"radfedi(S={S}, gamma=0.8)", {"gamma": 0.8}),
]


@pytest.mark.parametrize(("method", "arguments"), CASES, ids=[method.split("(")[0] for method, _ in CASES])
def test_algorithm(method: str, arguments: dict[str, Any]) -> None:
    e = experiment(method)
    result = Run(e).go()
    torch.testing.assert_close(result.params, walk(e, **arguments), rtol=1e-4, atol=2e-6)
    assert (result.params - walk(experiment("radfed"))).abs().max() > 1e-4 or method == f"radfed(S={S})"


def test_radfed_is_is_radfedi() -> None:
    a, b = (Run(experiment(f"{name}(S=3)")).go() for name in ("radfed_is", "radfedi"))
    assert a.summary["model_sha256"] == b.summary["model_sha256"]


def test_key_of_the_oracle_is_the_runs() -> None:
    assert experiment("radfed").key == Key.root(0)
