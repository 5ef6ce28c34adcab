"""What hooks return is looked at: one sentence that names the part and the hook, on every executor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import motley
from motley.core.errors import HookError, InputError, TrainingError
from motley.core.part import Part, compose
from motley.methods import make_method

CLIENT: list[tuple[str, Any, str]] = [
    ("trainable", lambda net, facts: torch.ones(net.n_layers + 1), r"a tensor of shape \(3,\); .* of shape \(2,\)"),
    ("trainable", lambda net, facts: None, r"returned None; it must return a tensor of shape \(2,\)"),
    ("begin", lambda c, me, data: None, "returned None; it must return the client"),
    ("begin", lambda c, me, data: c.with_(params=c.params[:-1]), r"a client whose 'params' has the shape \(610,\)"),
    ("view", lambda c, me, params: params[:-1], r"returned a tensor of shape \(609,\)"),
    ("logits", lambda c, me, batch, logits: logits[:1], r"a tensor of shape \(1, 10\); it must return a tensor"),
    ("logits", lambda c, me, batch, logits: None, "returned None; it must return a tensor"),
    ("penalty", lambda c, me, batch, out: out.logits, r"it must return a tensor of shape \(\)"),
    ("penalty", lambda c, me, batch, out: None, "returned None"),
    ("gradient", lambda c, me, grad: grad.sum(), r"a tensor of shape \(\); it must return a tensor of shape \(610,\)"),
    ("epoch", lambda c, me: None, "returned None; it must return the client"),
    ("report", lambda c, me, data: torch.zeros(1), "it must return a pair: the client, and what goes up"),
]
SERVER: list[tuple[str, Any, str]] = [
    ("weigh", lambda s, rnd, updates: updates.n * float("nan"), "weights that are finite, not below 0, and not all 0"),
    ("weigh", lambda s, rnd, updates: updates.n * 0, "weights that are finite, not below 0, and not all 0"),
    ("weigh", lambda s, rnd, updates: -updates.n, "weights that are finite, not below 0, and not all 0"),
    ("weigh", lambda s, rnd, updates: updates.n[:1], r"it must return a tensor of shape \(2,\), one weight per update"),
    ("select", lambda s, rnd, pool: pool.ids[:0], r"returned \[\]; it must return at least one of the clients"),
    ("select", lambda s, rnd, pool: pool.ids[[0, 0]], r"returned \[0, 0\]; it must return every client once at most"),
    ("select", lambda s, rnd, pool: torch.tensor([99]), "it must return clients that are there; 99 is not"),
    ("select", lambda s, rnd, pool: torch.tensor([True, False]), r"a tensor of client ids, whole numbers \[K\]"),
    ("plan", lambda s, rnd, ids, plan: None, "returned None; it must return the plan"),
    ("plan", lambda s, rnd, ids, plan: plan._replace(epochs=-plan.epochs), "epochs that are finite and not below 0"),
    ("plan", lambda s, rnd, ids, plan: plan._replace(lr=-plan.lr), "learning rates that are finite and not below 0"),
    ("merge", lambda s, rnd, params, updates, weights: params[:-1], r"it must return a model of shape \(610,\)"),
    ("merge", lambda s, rnd, params, updates, weights: params.double(), r"a model of shape \(610,\) \(float32\)"),
    ("merge", lambda s, rnd, params, updates, weights: params / 0, "a model of finite numbers; it did not"),
    ("step", lambda s, rnd, old, new, updates: (new * float("nan"), None), "a model of finite numbers; it did not"),
    ("step", lambda s, rnd, old, new, updates: new, "it must return a pair: the model and the part's state"),
]


def refused(hook: str, function: Any, words: str, executor: str) -> None:
    hooks: dict[str, Any] = {hook: function}
    method = compose(make_method("fedavg"), Part("mine", **hooks))
    settings: dict[str, Any] = {"rounds": 1, "clients": 4, "cohort": 2, "executor": executor}
    with pytest.raises(HookError, match=f"The hook '{hook}' of the part 'mine' .*{words}"):
        motley.train("mlp(hidden=[8])", "digits", method=method, **settings)


@pytest.mark.parametrize("executor", ["loop", "batched(device=cpu)"])
@pytest.mark.parametrize(("hook", "function", "words"), CLIENT)
def test_client_hooks(hook: str, function: Any, words: str, executor: str) -> None:
    refused(hook, function, words, executor)


@pytest.mark.parametrize(("hook", "function", "words"), SERVER)
def test_server_hooks(hook: str, function: Any, words: str) -> None:
    refused(hook, function, words, "loop")


def _train(**hooks: Any) -> None:
    method = compose(make_method("fedavg"), Part("mine", **hooks))
    motley.train("mlp(hidden=[8])", "digits", method=method, rounds=1, clients=4, cohort=2, executor="loop")


@pytest.mark.parametrize("sent", [None, torch.zeros(3), {"what": 1}])
def test_what_is_encoded_must_be_a_change_of_the_model(sent: Any) -> None:
    def wrong(c: Any, me: Any, payload: Any) -> Any:
        return sent

    with pytest.raises(InputError, match=r"as the hooks 'encode' and 'decode' of mine left it, is a .*\(610,\)"):
        _train(encode=wrong)


@pytest.mark.parametrize(
    ("hook", "function"),
    [
        ("penalty", lambda c, me, batch, out: out.logits.sum() * float("nan")),
        ("gradient", lambda c, me, grad: grad / 0),
        ("encode", lambda c, me, payload: payload * float("nan")),
    ],
)
def test_numbers_that_are_none_are_blamed_on_who_may_have_made_them(hook: str, function: Any) -> None:
    with pytest.raises(TrainingError, match=f"see what the hook '{hook}' of the part 'mine' return"):
        _train(**{hook: function})
    with pytest.raises(TrainingError) as caught:
        motley.train("mlp(hidden=[8])", "digits", lr=1e30, rounds=2, clients=4, cohort=2, executor="loop")
    assert "hook" not in str(caught.value)
