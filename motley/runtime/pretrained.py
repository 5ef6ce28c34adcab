"""Models that begin with weights from elsewhere, and what parts make of a module before it is trained."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from motley.core.errors import StateError
from motley.core.keys import Key
from motley.core.network import Network
from motley.core.part import Method

TOLD = 3  # names in a sentence


def prepared_network(net: Network, source: str | None, method: Method, key: Key) -> Network:
    """The network with the weights of a file, and with what parts add to its module; the given one stays as it is."""
    hooks = method.hooks("adapt")
    if source is None and not hooks:
        return net
    module = copy.deepcopy(net.module)
    if source is not None:
        load_weights(module, source, net.head)
    if not hooks:
        made = _again(net, module)
        made.made_from = net.made_from
        return made
    for _, hook in hooks:
        module = hook(module, key)
    return _again(net, module)


def _again(net: Network, module: nn.Module) -> Network:
    """A network of a module that was made of another one's."""
    named = net.last.given
    return Network(module, head=named if named in dict(module.named_modules()) else None)


def load_weights(module: nn.Module, source: str, head: str | None = None) -> None:
    """Takes a module's weights from a file: safetensors, or what ``torch.save(module.state_dict())`` wrote.

    A last layer of another shape stays as it was drawn; any other weight that does not fit is refused.
    """
    found, own = _read(source), module.state_dict()
    fitting = {name: value for name, value in found.items() if _fits(value, own.get(name))}
    odd = _left_out(own, fitting)
    _refuse_wrong([name for name in odd if not name.startswith(f"{head}.")], source, found, own)
    if odd:
        warnings.warn(
            f"The last layer '{head}' is drawn anew: that of {source} has another shape or is not there.", stacklevel=2
        )
    _tell_unused([name for name in found if name not in own], source)
    module.load_state_dict({**own, **fitting})


def _left_out(own: dict[str, Tensor], fitting: dict[str, Tensor]) -> list[str]:
    """Weights of a module for which a file has none that fit; how many batches a norm has seen does not count."""
    return [name for name in own if name not in fitting and not name.endswith("num_batches_tracked")]


def _tell_unused(unused: list[str], source: str) -> None:
    if unused:
        shown = ", ".join(unused[:TOLD]) + (", ..." if len(unused) > TOLD else "")
        warnings.warn(f"{source} holds weights that this model has not: {shown}.", stacklevel=3)


def _fits(value: Tensor, own: Tensor | None) -> bool:
    return own is not None and own.shape == value.shape


def _refuse_wrong(wrong: list[str], source: str, found: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    if not wrong:
        return
    name = wrong[0]
    got = f"has the shape {tuple(found[name].shape)}, not {tuple(own[name].shape)}" if name in found else "is missing"
    more = f", and {len(wrong) - 1} more do not fit" if len(wrong) > 1 else ""
    raise StateError(f"The pretrained weights {source} do not fit this model: '{name}' {got}{more}.")


def _read(source: str) -> dict[str, Tensor]:
    path = Path(source) / "model.safetensors" if Path(source).is_dir() else Path(source)
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        told = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise StateError(f"The pretrained weights {path} cannot be read: {told}.") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise StateError(
            f"{path} holds no weights by name; save them by torch.save(model.state_dict(), ...) or as safetensors."
        )
    return found
