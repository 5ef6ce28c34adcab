"""Whether parts, a problem, a model and data fit together; what does not is refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from motley.core.errors import ConflictError, DataError, MotleyError, RecipeError
from motley.core.network import Network
from motley.core.part import Method
from motley.core.problem import Problem
from motley.data.dataset import Dataset
from motley.data.federated import FederatedData


def check_fit(method: Method, problem: Problem, net: Network | None = None) -> None:
    """Refuses parts that need what a problem or a model has not."""
    for part in method.parts:
        check_needs("part", part.name, part.needs, problem)
        if net is not None and "features" in part.needs and "features" not in net.offers:
            raise ConflictError(
                f"The part '{part.name}' needs the features of the last layer, and the model "
                f"{type(net.module).__name__} has no linear last layer; leave the part out, or take another model."
            )


def check_needs(kind: str, name: str, needs: Sequence[str], problem: Problem) -> None:
    words = {"labels": "class labels", "features": "features of the last layer"}
    for need in needs:
        if need != "public" and need not in problem.offers:
            raise ConflictError(
                f"The {kind} '{name}' needs {words.get(need, need)}, which the problem '{problem.name}' has not; "
                f"leave the {kind} out, or take a problem that has them."
            )


@torch.no_grad()
def check_loss(problem: Problem, net: Network, dataset: Dataset) -> None:
    """Refuses a loss that cannot be had from what a model gives and a data set holds."""
    if problem.classes and not dataset.n_classes:
        raise DataError(
            f"The problem '{problem.name}' needs class labels, but the targets of '{dataset.name}' are numbers; "
            "take problem=regression, or one of your own."
        )
    outputs, y = _first_outputs(net, dataset), dataset.y[:2]
    _check_width(problem, outputs, dataset)
    try:
        found = tuple(problem.losses(outputs, y).shape)
    except NotImplementedError:
        return  # its loss is not one of the outputs alone
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise DataError(
            f"The loss of the problem '{problem.name}' cannot be computed from outputs {tuple(outputs.shape)} and "
            f"targets {tuple(y.shape)}: {error}."
        ) from None
    if found != (len(y),):
        raise DataError(
            f"The loss of the problem '{problem.name}' gives the shape {found}; it must give one number per sample, "
            f"here {(len(y),)}."
        )


def arranged(problem: Problem, data: FederatedData) -> FederatedData:
    """Clients' data as the problem's loss takes them, what they are judged on too."""
    dataset = problem.arranged(data.dataset)
    if dataset is data.dataset:
        return data
    own = None if data.own_tests is None else arranged(problem, data.own_tests)
    return replace(data, dataset=dataset, own_tests=own)


def _check_width(problem: Problem, outputs: Tensor, dataset: Dataset) -> None:
    """Refuses a model with fewer outputs than there are classes or target numbers."""
    width = outputs.shape[-1] if outputs.dim() > 1 else 1
    if width < problem.width(dataset) and not problem.own_outputs:
        kind = "classes" if problem.classes else "tokens" if problem.inputs == "text" else "target numbers"
        told = f"{width} output{'s' if width > 1 else ''}"
        hint = _why_so_many(width, dataset) if problem.classes else ""
        raise RecipeError(f"The model has {told} but the data {problem.width(dataset)} {kind}{hint}.")


def _why_so_many(width: int, dataset: Dataset) -> str:
    """What may be meant where there are more classes than outputs."""
    kinds = dataset.y.unique()
    if width == 1:
        return "; if these are numbers to be learned, say problem=regression"
    if len(kinds) == width and int(kinds[0]) == 1:
        return "; its labels begin at 1: subtract it"
    return f"; it holds only {len(kinds)} of them: number them from 0 without gaps" if len(kinds) <= width else ""


def _first_outputs(net: Network, dataset: Dataset) -> Tensor:
    """What a model makes of two samples; a model that cannot take them is refused."""
    x = dataset.inputs(dataset.x[:2])
    try:
        return net.look(x).logits
    except MotleyError:
        raise
    except Exception as error:  # whatever a module of the user's raises
        told = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise DataError(
            f"The model {type(net.module).__name__} cannot take the inputs of '{dataset.name}', {tuple(x.shape[1:])} "
            f"per sample ({str(x.dtype).removeprefix('torch.')}): {told}."
        ) from error
