"""Trained models as files: what comes back is what was scored, and other programs compute the same from raw inputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import motley
from motley.core.errors import InputError, StateError
from motley.data.datasets import load as load_dataset
from motley.runtime.result import Result
from tests.cli.conftest import Motley
from tests.cli.conftest import motley as motley_command  # noqa: F401  (a fixture)

BASE: dict[str, Any] = {"data": "digits", "clients": 6, "cohort": 3, "rounds": 2, "executor": "loop"}
FORMS = ["state_dict", "torchscript", "torch.export", "onnx"]


class Own(nn.Module):
    """A model of one's own with a frozen layer and a buffer."""

    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.first.requires_grad_(False)
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.first(x) * self.factor))
        return found


@pytest.fixture
def own(tmp_path: Path) -> tuple[Result, Tensor, Own]:
    """A run on a table of one's own that is far from standardised."""
    x = 50.0 + 7.0 * torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 200).long() + (x[:, 0] > 50).long()
    given = Own()
    return motley.train(given, (x, y), clients=4, cohort=2, rounds=2, scale="pooled", folder=tmp_path / "run"), x, given


def same(one: nn.Module, other: nn.Module, x: Tensor) -> bool:
    with torch.no_grad():
        return torch.equal(one(x), other(x))


@pytest.mark.parametrize("model", ["mlp(hidden=[8])", "cnn_ama(channels=[3, 4], hidden=[12, 10], padding=2)"])
def test_a_named_model_comes_back_from_its_file_and_from_its_run(model: str, tmp_path: Path) -> None:
    result = motley.run(BASE, tmp_path / "run", model=model)
    path = result.save(tmp_path / "some" / "model.safetensors")
    raw = load_dataset("digits").test_x[:7]
    for source in (path, tmp_path / "run"):
        loaded = motley.load_model(source)
        assert not loaded.training
        assert same(loaded, result.module(), raw)
        bare = motley.load_model(source, raw=False)
        assert same(bare, result.model, load_dataset("digits").inputs(raw))


def test_the_file_is_read_by_plain_torch(own: tuple[Result, Tensor, Own], tmp_path: Path) -> None:
    result, _, given = own
    named = safetensors.torch.load_file(result.save(tmp_path / "m.safetensors"))
    given.load_state_dict(named)  # frozen weights and buffers are there, under the module's own names
    assert torch.equal(given.last.weight, result.model.last.weight)  # type: ignore[union-attr]


def test_a_model_of_ones_own_is_loaded_into_one(own: tuple[Result, Tensor, Own], tmp_path: Path) -> None:
    result, x, _ = own
    path = result.save(tmp_path / "m.safetensors")
    for source in (path, tmp_path / "run"):
        with pytest.raises(StateError, match=r"\(Own\) was given in Python.*into=Own\(\.\.\.\)"):
            motley.load_model(source)
        empty = Own()
        assert same(motley.load_model(source, into=empty), result.module(), x)
        assert not torch.equal(empty.last.weight, result.model.last.weight)  # type: ignore[union-attr]
    with pytest.raises(StateError, match="does not fit the module Linear"):
        motley.load_model(path, into=nn.Linear(4, 3))


def test_the_run_can_still_be_started_from_and_resumed(tmp_path: Path) -> None:
    first = motley.run(BASE, tmp_path / "run")
    second = motley.run(BASE, initial=str(tmp_path / "run"), rounds=1)
    assert second.summary["model_sha256"] != first.summary["model_sha256"]
    assert motley.resume(tmp_path / "run").summary["model_sha256"] == first.summary["model_sha256"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_computes_what_the_model_does(form: str, own: tuple[Result, Tensor, Own], tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
    result, x, _ = own
    check(form, motley.export(result, to=form), result, x)


@pytest.mark.parametrize("form", FORMS[1:])
def test_images_with_their_own_scaling(form: str, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
    result = motley.run(BASE, tmp_path / "run", model="cnn_ama(channels=[3, 4], hidden=[12, 10], padding=2)")
    raw = load_dataset("digits").test_x[:5].float()
    assert raw.max() > 2  # as stored, not as the model was trained on
    check(form, motley.export(tmp_path / "run", tmp_path / "out" / "m", to=form), result, raw)


def check(form: str, path: Path, result: Result, x: Tensor) -> None:
    """What another program reads gives the outputs of the result's own module, for batches of other sizes too."""
    module = result.module()
    if form == "state_dict":
        for name, value in torch.load(path).items():
            assert torch.equal(value, module.state_dict()[name])
        return
    for batch in (x[:1], x[:5]):
        with torch.no_grad():
            assert torch.allclose(outputs(form, path, batch), module(batch), atol=1e-5)


def outputs(form: str, path: Path, x: Tensor) -> Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "torchscript":
            return torch.jit.load(str(path))(x)  # type: ignore[no-any-return, no-untyped-call]
        if form == "torch.export":
            return torch.export.load(path).module()(x)  # type: ignore[no-any-return]
        from onnx.reference import ReferenceEvaluator

        return torch.from_numpy(ReferenceEvaluator(str(path)).run(None, {"inputs": x.numpy()})[0])


def test_what_cannot_be_is_told(own: tuple[Result, Tensor, Own], tmp_path: Path, monkeypatch: Any) -> None:
    result = own[0]
    with pytest.raises(InputError, match=r"must end in \.safetensors"):
        result.save(tmp_path / "model.pt")
    with pytest.raises(InputError, match="did you mean 'torchscript'"):
        motley.export(result, to="torchscrip")
    with pytest.raises(StateError, match="There is no model at"):
        motley.load_model(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"123")
    with pytest.raises(StateError, match="cannot be read"):
        motley.load_model(tmp_path / "bad.safetensors")
    with pytest.raises(InputError, match="say where to write"):
        motley.export(motley.run(BASE))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match="needs onnx and onnxscript: pip install"):
        motley.export(result, to="onnx")


def test_from_the_command_line(motley_command: Motley) -> None:  # noqa: F811
    run = motley_command("run", "digits", "rounds=1", "--json").last["run"]
    end = motley_command("export", run, "--json")
    assert end.code == 0, end.err
    assert Path(end.last["model"]) == Path(run) / "model.pt"
    assert end.last["bytes"] > 1000
    assert "model.pt2" in motley_command("export", run, "--to", "torch.export").out
    wrong = motley_command("export", run, "--to", "tflite")
    assert (wrong.code, "no form of export named 'tflite'" in wrong.err) == (2, True)
