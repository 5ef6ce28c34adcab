"""``requires_grad=False``: such weights are not trained, not sent, not averaged and not charged, on every way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import motley
from motley.core.errors import DataError, InputError
from motley.core.network import Network
from motley.data.adapters import from_clients
from motley.data.federated import FederatedData
from motley.engine.kernels.descent_op import is_plain_linear
from motley.nets import cost_of, flops
from motley.nets.logistic import Logistic
from motley.nets.lstm import LSTMLayer
from motley.nets.width import first_width
from motley.runtime.experiment import Given, prepare
from motley.runtime.result import Result

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 120)
X = (RNG.normal(size=(120, 5)) + Y[:, None]).astype(np.float32)
SETTINGS = {"rounds": 2, "clients": 5, "cohort": 3, "lr": 0.1, "batch_size": 8, "fleet": "uniform_spread(ratio=6)"}
FROZEN = [("0",), ("2",), ("4",), ("4.bias",), ("2.weight",), ("0.bias", "2.bias", "4.bias"), ("0", "2"), ("2", "4")]


def given(x: np.ndarray, y: np.ndarray) -> FederatedData:
    return from_clients([(x, y)], (x, y))


def model(*frozen: str) -> nn.Sequential:
    """Layers of 48, 54 and 21 numbers; those of these names are not trained."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(not any(name.startswith(one) for one in frozen))
    return made


def trained(frozen: tuple[str, ...], **settings: Any) -> Result:
    """A run; what is frozen has not moved, what is not has."""
    module = model(*frozen)
    result = motley.train(module, (X, Y), **{**SETTINGS, **settings})
    new = dict(result.model.named_parameters())
    for name, old in module.named_parameters():
        assert not torch.equal(old, new[name]) or not old.requires_grad or "freeze" in str(settings), name
        assert torch.equal(old, new[name]) or old.requires_grad, name
        assert new[name].requires_grad == old.requires_grad
    size = sum(one.numel() for one in module.parameters() if one.requires_grad)
    assert result.params.numel() == size
    return result


@pytest.mark.parametrize("frozen", FROZEN)
def test_only_what_may_move_moves_is_sent_and_charged(frozen: tuple[str, ...]) -> None:
    loop = trained(frozen, executor="loop")
    size = loop.params.numel()
    for record in loop.records:
        assert (record.bytes_up, record.bytes_down) == (3 * 4 * size, 3 * 4 * size)
    batched = trained(frozen, executor="batched(device=cpu)")
    torch.testing.assert_close(batched.params, loop.params, atol=1e-5, rtol=1e-5)


def test_the_pool_gives_the_same_bits() -> None:
    for frozen in (("0",), ("4.bias",)):
        assert torch.equal(trained(frozen, executor="pool(workers=2)").params, trained(frozen).params)


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": "sgd(momentum=0.9, weight_decay=0.1)"},
        {"optimizer": "adam(weight_decay=0.1)", "lr": 0.01},
        {"method": "fedadam"},
        {"method": "fedavgm+ama"},
        {"method": "scaffold"},
        {"method": "feddyn"},
        {"method": "moon"},
        {"method": "rebafl"},
        {"method": "fedavg+freeze_prefix(beta=50, deadline=0.000001)", "epochs": 2.0},
        {"method": "fedbuff(buffer=2)"},
        {"method": "fedavg_ft(per_class=2)", "public": "held(fraction=0.2)"},
        {"method": "heterofl"},
        {"method": "fjord"},
    ],
    ids=lambda more: str(more.get("method", more.get("optimizer"))),
)
def test_weight_decay_server_steps_and_other_parts_leave_it(more: dict[str, Any]) -> None:
    for frozen in (("0",), ("4.bias",), ("2",)):
        trained(frozen, **more)


def test_a_linear_model_with_a_frozen_bias_or_weight_on_the_quick_ways() -> None:
    for name in ("bias", "weight"):
        runs = []
        for executor in ("loop", "batched(device=cpu)"):
            torch.manual_seed(0)
            module = Logistic(5, 3, False)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.normal_()
            held = module.get_parameter(f"head.{name}").requires_grad_(False)
            result = motley.train(module, (X, Y), executor=executor, **SETTINGS)
            assert torch.equal(result.model.get_parameter(f"head.{name}"), held)
            assert result.net is not None
            site = prepare(result.recipe, Given(given(X, Y), result.net)).site
            assert not is_plain_linear(site.training, site.data), "a kernel of a whole layer takes a whole layer"
            runs.append(result.params)
        torch.testing.assert_close(*runs, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_is_held_already_and_a_frozen_classifier_cannot_be_trained_alone() -> None:
    same = trained(("4",), method="fedbabu")
    assert torch.equal(same.params, trained(("4",)).params)
    for method in ("fedavg+classifier_only", "fes"):
        with pytest.raises(DataError, match="The layers of the classifier have requires_grad=False"):
            motley.train(model("4"), (X, Y), method=method, **{**SETTINGS, "fleet": "limited(fraction=0.5)"})
    with pytest.raises(DataError, match="The last layer '4' has requires_grad=False"):
        motley.train(model("4"), (X, Y), method="fedavg_ft(per_class=2)", public="held(fraction=0.2)", **SETTINGS)


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(DataError, match="no parameters to train; all of them have requires_grad=False"):
        motley.train(model("0", "2", "4"), (X, Y), **SETTINGS)


# ------------------------------------------------------------------------------------- operations

FIRST, SECOND, THIRD = 2.0 * 5 * 8, 2.0 * 8 * 6, 2.0 * 6 * 3
FORWARD = FIRST + SECOND + THIRD
X1 = torch.zeros(1, 5)


@pytest.mark.parametrize(
    ("frozen", "backward"),
    [
        ((), FIRST + 2 * SECOND + 2 * THIRD),
        (("0",), SECOND + 2 * THIRD),  # nothing goes back to the first layer
        (("2",), FIRST + SECOND + 2 * THIRD),  # through the second to the first, no gradient of its own
        (("4",), FIRST + 2 * SECOND + THIRD),
        (("2", "4"), FIRST + SECOND + THIRD),
        (("0", "2"), THIRD),
        (("0", "4"), SECOND + THIRD),
    ],
)
def test_operations_are_those_that_autograd_makes(frozen: tuple[str, ...], backward: float) -> None:
    assert flops(cost_of(Network(model(*frozen)), X1)) == FORWARD + backward


def test_a_frozen_weight_with_a_trained_bias_costs_next_to_nothing() -> None:
    cost = cost_of(Network(model("4.weight")), X1)
    assert cost.backward_weight[2] == pytest.approx(THIRD * 3 / 21)


def test_freezing_by_the_module_costs_what_freezing_by_a_method_costs() -> None:
    by_method = motley.train(model(), (X, Y), method="fedavg+classifier_only", **SETTINGS)
    by_module = trained(("0", "2"))
    torch.testing.assert_close(by_module.params, by_method.params[-21:])
    assert by_module.summary["bytes_up"] == by_method.summary["bytes_up"]


# ------------------------------------------------------------------------------------- narrow networks


def test_narrow_networks_leave_frozen_layers_whole() -> None:
    half = (torch.arange(8.0) / 8).tolist()
    second = first_width(Network(model("0")))[:48].view(6, 8)
    assert torch.equal(second[0], torch.zeros(8)), "all outputs of the frozen layer are there from the start"
    third = first_width(Network(model("2")))
    assert third[:40].view(8, 5)[:, 0].tolist() == half
    assert torch.equal(third[48:], torch.zeros(21))
    biasless = first_width(Network(model("4.bias")))
    assert len(biasless) == 120


def test_an_lstm_is_frozen_as_a_whole_or_not_at_all() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = LSTMLayer(3, 4)
            self.head = nn.Linear(4, 2)

    reader = Reader()
    next(reader.lstm.parameters()).requires_grad_(False)
    with pytest.raises(InputError, match="at layer 'lstm', only some of its weights are trained"):
        first_width(Network(reader))
    reader.lstm.requires_grad_(False)
    assert torch.equal(first_width(Network(reader)), torch.zeros(10))
