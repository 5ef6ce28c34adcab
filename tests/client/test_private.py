"""Layers that stay on clients, against averages taken by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from motley.client.private import private_layers
from motley.client.trainer import sent
from motley.core.errors import InputError
from motley.core.network import Network
from motley.core.part import Method, Part, compose
from motley.methods.named import make_method
from motley.runtime.experiment import Experiment
from motley.runtime.launch import Run
from motley.runtime.result import Result
from tests import tiny


def normed() -> Network:
    torch.manual_seed(3)
    return Network(nn.Sequential(nn.Linear(9, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)))


def plain_mean_of_all() -> Method:
    return make_method("fedavg")


def run(part: Part | Method, rounds: int = 1, **changes: object) -> tuple[Run, Result]:
    e: Experiment = tiny.experiment(compose(part), net=normed(), cohort=6, rounds=rounds, **changes)  # type: ignore[arg-type]
    one = Run(e)
    return one, one.go()


def spans(net: Network, names: tuple[str, ...]) -> Tensor:
    mask = torch.zeros(net.size, dtype=torch.bool)
    for slot in net.layout.slots:
        if slot.name in names:
            mask[slot.start : slot.stop] = True
    return mask


NORM = ("1.weight", "1.bias", "1.running_mean", "1.running_var")
CASES = [
    ("norms", NORM, [1, 0, 1]),
    ("statistics", NORM[2:], [1, 1, 1]),
    ("head", ("3.weight", "3.bias"), [1, 1, 0]),
    ("body", ("0.weight", "0.bias", *NORM), [0, 0, 1]),
    (["0"], ("0.weight", "0.bias"), [0, 1, 1]),
]


@pytest.mark.parametrize(("layers", "names", "layers_sent"), CASES)
@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_what_is_private_stays_on_the_client_and_the_rest_is_averaged(
    layers: str | list[str], names: tuple[str, ...], layers_sent: list[int], executor: str
) -> None:
    """After one round from one model: the mean of what clients train alone, but for what is private."""
    first, result = run(private_layers(layers=layers), executor=executor)
    net, start = first.experiment.net, first.experiment.net.initial()
    private = spans(net, names)
    assert sent(first.experiment.training).tolist() == layers_sent
    _, plain = run(plain_mean_of_all(), executor=executor)
    assert torch.equal(result.params[private], start[private])
    assert torch.allclose(result.params[~private], plain.params[~private], atol=1e-6)
    kept = [first.carrier.kept(client) for client in range(6)]  # type: ignore[attr-defined]
    n = torch.tensor(tiny.SIZES, dtype=torch.float32)
    mean = sum(own["private_layers"] * share for own, share in zip(kept, n / n.sum(), strict=True))
    assert torch.allclose(mean, plain.params[private], atol=1e-5)


def test_a_client_goes_on_from_its_own_layers() -> None:
    """Two rounds of one client alone: with everything its own or the server's, it is the same model."""
    alone = {"cohort": 1, "federated": tiny.data((24,))}
    e = tiny.experiment(make_method("fedbn"), net=normed(), rounds=2, **alone)  # type: ignore[arg-type]
    one = Run(e)
    theirs = one.go()
    plain = tiny.run(make_method("fedavg"), net=normed(), rounds=2, **alone)  # type: ignore[arg-type]
    own = one.carrier.kept(0)["private_layers"]  # type: ignore[attr-defined]
    private = spans(e.net, NORM)
    assert torch.allclose(own, plain.params[private], atol=1e-6)
    assert torch.allclose(theirs.params[~private], plain.params[~private], atol=1e-6)


def test_private_layers_are_not_charged() -> None:
    shared, whole = run(private_layers(layers="body"))[1], run(plain_mean_of_all())[1]
    net = normed()
    head = 4 * sum(slot.size for slot in net.layout.slots if slot.name.startswith("3."))
    assert shared.records[-1].bytes_up == 6 * head
    assert whole.records[-1].bytes_up == 6 * 4 * net.size
    assert shared.records[-1].bytes_down == 6 * head


def test_clients_are_judged_by_their_own_models() -> None:
    _, result = run(private_layers(layers="head"), rounds=3, client_test=0.3)
    _, plain = run(plain_mean_of_all(), rounds=3, client_test=0.3)
    ours, theirs = (one.records[-1].extra["own_accuracy"] for one in (result, plain))
    assert result.scores["accuracy"] < 0.6 < ours  # the server's head has never moved
    assert ours != theirs


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["3", "9"], "no layer '9'; its layers are 0, 1, 3"),
        (["0", "1", "3"], "leaves no layer that clients share"),
    ],
)
def test_layers_that_are_not_there_are_refused(layers: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny.experiment(compose(private_layers(layers=layers)), net=normed())


def test_a_model_without_norms_has_none_to_keep() -> None:
    with pytest.raises(InputError, match="finds nothing of layers='norms'"):
        tiny.experiment(make_method("fedbn"))
