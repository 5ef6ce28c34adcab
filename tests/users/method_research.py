"""Method research, coming from Flower: own model, arrays per client, an own part, FedAvg beside it over seeds."""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import motley
from motley.extend import Client, Mine, NotNegativeSchedule, Part, Record, Run, Tree, part
from motley.methods import fedavg
from motley.parts import proximal


class Net(nn.Module):
    """What one would write for Flower, with a layer that is not to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 48).requires_grad_(False)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.stem(x.flatten(1))))


@part("wire", neutral={"norm": float("inf")}, example={"norm": 0.1})
def tamed(norm: NotNegativeSchedule = 1.0) -> Part:
    """A client's change, clipped to a largest norm."""

    def encode(c: Client, me: Mine, payload: Tree) -> Tensor:
        return payload * (me.dials["norm"] / payload.norm().clamp_min(1e-12)).clamp_max(1.0)

    return Part(encode=encode, dials={"norm": norm})


digits = load_digits()
images, target = (digits.images / 16).astype(np.float32), digits.target
homes = [(images[:1400][target[:1400] % 5 == i], target[:1400][target[:1400] % 5 == i]) for i in range(5)]
held = (images[1400:], target[1400:])
common = {"test": held, "rounds": 8, "cohort": 4, "lr": 0.3, "epochs": 2}


def with_part(norm: float = 0.5) -> motley.Method:
    return motley.compose(fedavg(), tamed(norm=norm), proximal(mu=0.01))


def scores(method: object) -> list[float]:
    return [motley.train(Net, homes, method=method, seed=seed, **common).accuracy for seed in (0, 1)]


def comparison() -> None:
    """The part changes the models, and the same seed gives the same number."""
    plain, mine = scores(fedavg()), scores(with_part())
    print(f"fedavg {np.mean(plain):.3f}, mine {np.mean(mine):.3f}")
    assert scores(with_part()) == mine
    assert min(plain) > 0.3 and plain != mine and plain[0] != plain[1]


def parts_that_do_nothing() -> None:
    """With neutral arguments the composition is FedAvg, to the last bit."""
    neutral = motley.compose(fedavg(), tamed(norm=float("inf")), proximal(mu=0.0))
    shas = {motley.train(Net, homes, method=m, **common).summary["model_sha256"] for m in (fedavg(), neutral)}
    assert len(shas) == 1


def frozen_layer() -> None:
    """A frozen layer stays as it is, and is not sent."""
    torch.manual_seed(1)
    network = Net()
    before = network.stem.weight.clone()
    result = motley.train(network, homes, **common)
    assert torch.equal(result.model.stem.weight, before)
    assert not torch.equal(result.model.head.weight, network.head.weight)
    whole = Net().requires_grad_(True)
    assert result.summary["bytes_up"] < motley.train(whole, homes, **common).summary["bytes_up"] / 4


def callbacks_and_an_early_end() -> None:
    """A callback sees the model; a target ends the run; a schedule lowers the rate."""
    norms: list[float] = []

    def watch(run: Run, record: Record) -> None:
        norms.append(float(run.module.head.weight.detach().norm()))

    settings = {**common, "rounds": 40, "lr_schedule": "warm_up(rounds=2)+cosine", "stop": "accuracy>=0.4"}
    result = motley.train(Net, homes, listeners=[watch], **settings)
    assert result.accuracy >= 0.4 and len(norms) == result.summary["rounds"] < 40
    assert "accuracy>=0.4" in result.summary["ended"]


def later(folder: Path) -> None:
    """A finished run goes on for longer, with the same things given again, and is saved for elsewhere."""
    given = {"model": Net, "data": homes, "test": held, "method": with_part()}
    motley.train(Net, homes, method=with_part(), folder=folder / "run", **{**common, "rounds": 3})
    longer = motley.resume(folder / "run", rounds=8, **given)
    assert (
        longer.summary["model_sha256"] == motley.train(Net, homes, method=with_part(), **common).summary["model_sha256"]
    )
    longer.save(folder / "model.safetensors")
    again = motley.load_model(folder / "model.safetensors", into=Net())
    hits = again(torch.tensor(held[0])).argmax(1) == torch.tensor(held[1])
    assert float(hits.double().mean()) == longer.accuracy
    try:
        motley.resume(folder / "run", rounds=9, **{**given, "method": with_part(norm=0.1)})
    except motley.InputError as error:
        assert "tamed" in str(error) or "norm" in str(error), error
    else:
        raise AssertionError("other arguments of a part were taken on resume")


if __name__ == "__main__":
    comparison()
    parts_that_do_nothing()
    frozen_layer()
    callbacks_and_an_early_end()
    later(Path(sys.argv[1]))
