"""Reports on the wire: what an agent sends of a task, and whether what came can be one.

Whatever comes is looked at before anything is done with it: its structure, shapes and types must be those of a report
of this method, and its numbers finite. What an honest report looks like the server finds out by training one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from motley.client.site import Site
from motley.core.errors import MotleyError
from motley.core.layout import Layout
from motley.core.tasks import Assignment, Report, Weights
from motley.core.types import Tree
from motley.deploy.messages import Task
from motley.engine.loop import run_task

NUMBERS = ("n", "epochs", "steps", "reached", "width")
MOST_SAMPLES = 1e12


class ReportError(ValueError):
    """What came is no report of this method; the text says why."""


def report_tree(report: Report, layout: Layout) -> Tree:
    """A report as it is sent: of the change of the weights only the layers that were trained.

    Of a model that stays with its client its digest and size are sent.
    """
    payload = report.payload
    if report.held is not None:
        payload = {"held": report.held.ref, "size": report.held.size}
    if isinstance(payload, Tensor) and payload.shape == (layout.size,) and not bool((report.trained == 1).all()):
        payload = payload[layout.expand(report.trained) > 0]
    numbers = {name: getattr(report, name) for name in NUMBERS}
    return {"payload": payload, "trained": report.trained, "extras": report.extras, "loss": report.loss, **numbers}


def report_from(tree: Tree, layout: Layout, client: int) -> Report:
    """What `report_tree` gave of a task of this client; layers that were not sent have not changed."""
    payload, trained, held = tree["payload"], tree["trained"], None
    if is_held(payload):
        held, payload = Weights(None, payload["held"], client, payload["size"]), None
    if isinstance(payload, Tensor) and payload.dim() == 1 and not bool((trained == 1).all()):
        whole = torch.zeros(layout.size, dtype=payload.dtype)
        whole[layout.expand(trained) > 0] = payload
        payload = whole
    numbers = {name: tree[name] for name in NUMBERS}
    told = {"extras": tree["extras"], "loss": tree["loss"], **numbers}
    return Report(id="", payload=payload, trained=trained, held=held, **told)


def is_held(payload: Tree) -> bool:
    """Whether a payload says where a model stays, in place of what it is."""
    return isinstance(payload, dict) and payload.keys() == {"held", "size"}


@dataclass(frozen=True)
class ReportForm:
    """What a report of a run looks like."""

    layout: Layout
    encoded: bool  # payloads are what `encode` made, of any shape
    extras: Any  # structure, shapes and types
    narrow: bool

    @classmethod
    def of(cls, site: Site, task: Assignment) -> ReportForm:
        """Finds out by one step of such a task on the samples of a site's only client."""
        start = Weights(site.training.net.initial())
        a = task._replace(client=0, epochs=1e-9, floor=0.0, start=start, keep=False)
        made = run_task(site, a, site.facts([a]).row(0), None).report
        method = site.training.method
        return cls(site.training.net.layout, method.has("encode"), _shape(made.extras), method.has("width"))

    def read(self, tree: Tree, task: Task) -> Report:
        """The report of a task in a tree that came from outside; `ReportError` where it is none."""
        if not isinstance(tree, dict) or set(tree) != {"payload", "trained", "extras", "loss", *NUMBERS}:
            raise ReportError("it has not the parts of a report")
        trained = _tensor(tree["trained"], (self.layout.n_layers,), "which layers were trained")
        if not bool(((trained == 0) | (trained == 1)).all()):
            raise ReportError("which layers were trained is not told by zeros and ones")
        self._check_payload(tree["payload"], trained, task.keep)
        _tensor(tree["loss"], (), "the loss")
        if _shape(tree["extras"]) != self.extras:
            raise ReportError("what its parts report has another shape than this method's")
        for name in NUMBERS[:4]:
            _number(tree[name], name)
        if (tree["width"] is not None) != self.narrow:
            raise ReportError("it says another width than this method's clients have")
        if self.narrow:
            _number(tree["width"], "width")
        if tree["n"] <= 0 or not float(tree["steps"]).is_integer():
            raise ReportError("its numbers of samples or steps cannot be")
        _finite([tree["payload"], tree["extras"], tree["loss"]])
        return report_from({**tree, "steps": int(tree["steps"])}, self.layout, task.client)

    def _check_payload(self, payload: Tree, trained: Tensor, keep: bool) -> None:
        if keep != is_held(payload):
            raise ReportError("it does not say where its model stays" if keep else "it has no change of the weights")
        if keep:
            if not isinstance(payload["held"], str) or len(payload["held"]) != 64:
                raise ReportError("what it says of its model is no digest")
            _number(payload["size"], "size")
            return
        if self.encoded:
            return  # only its decoder can tell; the server tries
        wanted = int((self.layout.expand(trained) > 0).sum())
        _tensor(payload, (wanted,), "its change of the weights")


def _tensor(value: Any, shape: tuple[int, ...], what: str) -> Tensor:
    if not isinstance(value, Tensor) or tuple(value.shape) != shape or value.dtype != torch.float32:
        found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ReportError(f"{what} is {found}, not float32 {shape}")
    return value


def _number(value: Any, what: str) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not 0 <= value <= MOST_SAMPLES:
        raise ReportError(f"'{what}' is {value!r}, which cannot be")


def _finite(tree: Tree) -> None:
    leaves, _ = tree_flatten(tree)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            raise ReportError("it holds numbers that are not finite (NaN or infinite)")


def _shape(tree: Tree) -> Any:
    """Structure, shapes and types of a tree."""
    leaves, spec = tree_flatten(tree)
    kinds = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves]
    return str(spec), kinds


def check_model(tree: Tree, size: int) -> None:
    """Refuses what is no model of so many numbers."""
    _finite(_tensor(tree, (size,), "the model"))


def decodes(report: Report, decode: Any) -> None:
    """Refuses a payload that the method cannot undo."""
    try:
        decode(report.payload)
    except (MotleyError, RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ReportError(f"its payload cannot be decoded: {error}") from None
