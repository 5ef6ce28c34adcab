"""Trained models for other programs: TorchScript, ``torch.export``, ONNX, or a state dictionary; raw inputs go in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from motley.core.errors import InputError, StateError, UnknownNameError
from motley.data.preparation import Preparation
from motley.runtime.result import Result
from motley.runtime.saving import load_model, preparation_of

SUFFIXES = {"state_dict": ".pt", "torchscript": ".pt", "torch.export": ".pt2", "onnx": ".onnx"}


def export(
    source: Result | str | Path,
    path: str | Path | None = None,
    to: str = "torchscript",
    *,
    into: nn.Module | None = None,
    example: Tensor | None = None,
) -> Path:
    """Writes the trained model of a result, of a run's directory or of a saved file in another form.

    to: ``state_dict`` (of the module that takes raw inputs), ``torchscript``, ``torch.export`` or ``onnx``; the last
        three take batches of any size.
    into: as for `load_model`. example: raw inputs, where their shape is not known.
    """
    if to not in SUFFIXES:
        raise UnknownNameError("form of export", to, SUFFIXES)
    if isinstance(source, Result):
        module, preparation = source.module().eval(), source.preparation
    else:
        module, preparation = load_model(source, into), preparation_of(source)
    place = _place(source, path, to)
    place.parent.mkdir(parents=True, exist_ok=True)
    if to == "state_dict":
        torch.save(module.state_dict(), place)
        return place
    try:
        _WRITERS[to](module, _example(example, preparation), place)
    except InputError:
        raise
    except Exception as error:  # whatever torch's exporters raise
        told = str(error).strip().split("\n")[0].rstrip(".")
        raise InputError(
            f"torch cannot export this model to {to} ({type(error).__name__}: {told}); take another form, such as "
            "state_dict."
        ) from error
    return place


def _place(source: Result | str | Path, path: str | Path | None, to: str) -> Path:
    if path is not None:
        return Path(path)
    folder = source.folder if isinstance(source, Result) else Path(source)
    if folder is None:
        raise InputError("This run has no directory, so say where to write: motley.export(result, 'model.pt').")
    return (folder if folder.is_dir() else folder.parent) / f"model{SUFFIXES[to]}"


def _example(given: Tensor | None, preparation: Preparation | None) -> Tensor:
    if given is not None:
        return given
    if preparation is None or not preparation.shape:
        raise StateError("The shape of this model's inputs is not known; give some: motley.export(..., example=x[:2]).")
    return preparation.example()


def _torchscript(module: nn.Module, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is torch.export, too
        torch.jit.save(torch.jit.trace(module, example), str(path))


def _torch_export(module: nn.Module, example: Tensor, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(_any_batch(module, example), path)


def _any_batch(module: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def _onnx(module: nn.Module, example: Tensor, path: Path) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("Exporting to ONNX needs onnx and onnxscript: pip install onnx onnxscript.") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (example,), str(path), dynamo=True, external_data=False, verbose=False,
            dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), input_names=["inputs"], output_names=["outputs"],
        )  # fmt: skip


_WRITERS: dict[str, Callable[[nn.Module, Tensor, Path], None]] = {
    "torchscript": _torchscript,
    "torch.export": _torch_export,
    "onnx": _onnx,
}
