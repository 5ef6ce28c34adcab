"""Careless use in Python: every mistake is answered with one clear sentence, and nothing that was trained is lost."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import motley
from motley.extend import Record
from motley.methods import fedavg
from motley.parts import proximal

rng = np.random.default_rng(0)
x = rng.normal(size=(120, 6)).astype(np.float32)
y = rng.integers(0, 3, 120)
SMALL = {"clients": 6, "cohort": 3, "rounds": 2}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def train(data: object = (x, y), model: object = network, **settings: object) -> motley.Result:
    return motley.train(model, data, **{**SMALL, **settings})


def refused(mistake: Callable[[], object], *words: str) -> None:
    """The mistake raises one of Motley's errors: a sentence with these words, and none about the learning rate."""
    try:
        mistake()
    except motley.MotleyError as error:
        text = str(error)
        print("-", text)
        assert "\n" not in text and text.endswith((".", "?")), text
        assert all(word in text for word in words), (words, text)
        assert "learning rate" not in text, text
    else:
        raise AssertionError(f"nothing was said; expected {words}")


def holed(column: int = 4, row: int = 17) -> np.ndarray:
    broken = x.copy()
    broken[row, column] = np.nan
    return broken


def data_mistakes() -> None:
    refused(lambda: train((holed(), y)), "NaN", "row 17", "column 4")
    refused(lambda: train(test=(holed(), y)), "NaN", "test")
    refused(lambda: train((x, np.eye(3)[y])), "one-hot")
    refused(lambda: train((x, y + 0.5)), "regression")
    refused(lambda: train((x, y[:-1])), "120", "119")
    refused(lambda: train(test=0.0), "test")
    refused(lambda: train(test="half"), "fraction", "'half'")
    refused(lambda: train([(x[:60], y[:60]), (x[60:, :5], y[60:])], test=(x, y)), "column")
    refused(lambda: train([(x[:60], y[:60]), (x[60:], y[60:])]), "test")
    refused(lambda: train(test=(x[:, :5], y)), "6", "5")


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(given), given


def model_mistakes() -> None:
    refused(lambda: train(model=lambda: nn.Linear(5, 3)), "6", "5")
    refused(lambda: train(model=lambda: nn.Linear(6, 2)), "3", "2")
    refused(lambda: train(model=lambda: nn.LazyLinear(3)), "lazy")
    refused(lambda: train(model=lambda: nn.Linear(6, 3).double()), "float")
    refused(lambda: train(model=TwoOutputs), "tuple")
    refused(lambda: train(model=lambda: nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3))), "momentum")
    refused(lambda: train(model=nn.Linear), "Linear")


def setting_mistakes() -> None:
    refused(lambda: train(fleet="loss(probability=1.0)", rounds=30), "lost")
    refused(lambda: train(deadline=1e-12, rounds=30), "deadline")
    refused(lambda: train(method="fedpox"), "fedprox")
    refused(lambda: train(method=["fedprox", "ama"]), "'fedprox'", "fedprox+ama")
    refused(lambda: train(method=3), "3")
    refused(lambda: train(method=fedavg), "fedavg()")
    refused(lambda: motley.compose(fedavg(), proximal), "proximal()")
    refused(lambda: motley.run("digts"), "digits")
    refused(lambda: train(partition="dirichlet(alpa=0.3)"), "alpa", "alpha")
    refused(lambda: train(lr=-1), "lr")
    refused(lambda: train(cohort=0), "cohort")
    refused(lambda: train(round=3), "rounds")
    refused(lambda: train(clients=500), "500", "96")
    refused(lambda: train(device="mps"), "mps")
    refused(lambda: train(stop="acuracy>=0.9"), "acuracy", "accuracy")
    refused(lambda: train(listeners=[3]), "listener")
    refused(lambda: train(listeners=[lambda: None]), "argument")


def raising_callback(folder: Path) -> None:
    """What a callback raises comes with its traceback after the run was saved, so it resumes to the same model."""

    def tired(record: Record) -> None:
        if record.round == 2:
            raise ZeroDivisionError("mine")

    try:
        train(rounds=4, folder=folder / "tired", listeners=[tired])
    except ZeroDivisionError as error:
        assert error.__traceback__ is not None
    else:
        raise AssertionError("the callback's error was swallowed")
    again = motley.resume(folder / "tired", model=network, data=(x, y))
    assert again.summary["model_sha256"] == train(rounds=4).summary["model_sha256"]
    assert [record.round for record in again.records] == [1, 2, 3, 4]


def other_things_on_resume(folder: Path) -> None:
    """A run on given data is neither resumed without them nor with others."""
    done = folder / "done"
    model = (train(folder=done), (done / "model.safetensors").read_bytes())[1]
    refused(lambda: motley.resume(done, rounds=4), "data=")
    refused(lambda: motley.resume(done, rounds=4, model=network, data=(x + 1, y)), "data")
    refused(lambda: motley.resume(done, rounds=4, model=lambda: nn.Linear(6, 3), data=(x, y)), "model")
    refused(lambda: motley.resume(done, rounds=1, model=network, data=(x, y)), "round 2", "after 1")
    refused(lambda: motley.resume(folder / "nowhere"), "nowhere")
    assert (done / "model.safetensors").read_bytes() == model
    assert (done / "summary.json").is_file()
    assert motley.resume(done, rounds=4, model=network, data=(x, y)).summary["rounds"] == 4


if __name__ == "__main__":
    data_mistakes()
    model_mistakes()
    setting_mistakes()
    raising_callback(Path(sys.argv[1]))
    other_things_on_resume(Path(sys.argv[1]))
