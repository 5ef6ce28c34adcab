"""Models that can and that cannot be trained for many clients as one computation."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import motley
from motley.client.problems import make_problem
from motley.core.errors import InputError
from motley.engine import choice
from motley.engine.batched import mapping
from motley.runtime.experiment import Given, prepare
from motley.runtime.recipe import load
from motley.runtime.train import as_federated


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x.reshape(len(x), 5, 8)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 6, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x.reshape(len(x), 5, 8))[0][:, -1])


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.out(x)
        return z if z.sum().item() > 0 else 2 * z


def train(model: nn.Module, executor: str) -> motley.Result:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (120,), generator=draw)
    x = torch.randn(120, 40, generator=draw) + y[:, None]
    settings = {"clients": 4, "cohort": 2, "rounds": 2, "batch_size": 8, "lr": 0.05, "device": "cpu"}
    return motley.train(model, (x, y), executor=executor, **settings)


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def test_attention_is_trained_as_one_computation() -> None:
    begun = time.monotonic()
    together, one_by_one = train(seeded(Attending), "batched"), train(seeded(Attending), "loop")
    assert time.monotonic() - begun < 120
    assert torch.allclose(together.params, one_by_one.params, atol=1e-4)
    assert not torch.allclose(together.params, motley.Network(seeded(Attending)).initial(), atol=1e-2)


class Turning(Asking):
    """Asks whether, without a number."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.out(x)
        return z if x.sum() > 0 else 2 * z


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Recurrent, "no rule by which aten::.* works"),
        (Asking, r"\.item\(\)"),
        (Turning, "data-dependent control flow"),
    ],
)
def test_what_torch_cannot_map_is_trained_one_by_one(kind: type[nn.Module], why: str) -> None:
    begun = time.monotonic()
    with pytest.warns(UserWarning, match=why) as caught:
        found = train(seeded(kind), "batched")
    told = str(caught.list[0].message)
    assert "cannot train this model" in told
    assert "This run takes executor=loop" in told
    assert "\n" not in told
    assert time.monotonic() - begun < 30
    assert found.summary["executor"] == "loop"
    assert torch.equal(found.params, train(seeded(kind), "loop").params)
    assert train(seeded(kind), "auto").summary["executor"] == "loop"


def test_a_gpu_does_not_get_them_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load({"clients": 4})
    data, _ = as_federated((torch.randn(40, 40), torch.arange(40) % 3), None, recipe, make_problem("classification"))
    site = prepare(recipe, Given(data=data, net=motley.Network(Recurrent()))).site
    monkeypatch.setattr(choice, "pick", lambda device: "cuda")
    with pytest.warns(UserWarning, match="one by one on the CPU, not on the GPU"):
        assert choice.choose(site, device="cuda", workers=1, cohort=2, rounds=1, epochs=1.0) == "loop"


def test_a_trace_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "LONGEST", 20)
    with pytest.warns(UserWarning, match="more than 20 operations"):
        assert train(seeded(Attending), "batched").summary["executor"] == "loop"


def test_any_optimizer_of_torch_trains_one_by_one() -> None:
    def result(optimizer: str, executor: str) -> motley.Result:
        settings: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 2, "lr": 0.01, "executor": executor}
        return motley.run("digits", model="mlp(hidden=[8])", optimizer=optimizer, **settings)

    by_torch, ours = (
        result("torch_optim(name='AdamW', weight_decay=0.1)", "loop"),
        result("adamw(weight_decay=0.1)", "loop"),
    )
    assert torch.allclose(by_torch.params, ours.params, atol=1e-4)
    with pytest.warns(UserWarning, match=r"cannot train with the optimizer torch_optim\(name='NAdam'\)"):
        assert result("torch_optim(name='NAdam')", "batched").summary["executor"] == "loop"
    with pytest.raises(InputError, match=r"There is no optimizer in torch.optim named 'AdamX'; did you mean 'Adam"):
        result("torch_optim(name='AdamX')", "loop")
    for unfit in ("LBFGS", "SparseAdam", "Optimizer"):
        with pytest.raises(InputError, match=f"The optimizer '{unfit}' of torch.optim .*; take ASGD"):
            result(f"torch_optim(name={unfit})", "loop")
    with pytest.raises(InputError, match=r"cannot be made: .*'speed'"):
        result("torch_optim(name='NAdam', speed=3)", "loop")
