"""Layers of a client's own: trained where they are, never sent (FedPer, LG-FedAvg, FedBN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from motley.core.errors import InputError
from motley.core.layout import Slot
from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.types import Client, Data, Facts, Mine, Tree

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)


@part("trainable", example={"layers": "head"})
def private_layers(layers: str | list[str] | tuple[str, ...] = "head") -> Part:
    """Layers that stay on the client: it trains its own, and neither sends nor receives them.

    layers: ``head``, the last linear layer (FedPer, Arivazhagan et al. 2019); ``body``, all but that (LG-FedAvg, Liang
    et al. 2020); ``norms``, normalisation with its weights and running statistics (FedBN, Li et al. 2021);
    ``statistics``, the running statistics of batch norm alone (SiloBN, Andreux et al. 2020); or names of layers.

    A client's own layers begin as the first model has them. In the server's model they stay so: it is the clients' own
    models that count, which are judged where every client has test samples (``split="within_clients"``).
    """

    def keep(net: Network, start: Tensor, facts: Facts) -> Tree:
        return start.index_select(0, _places(net, layers).to(start.device))

    def begin(c: Client, me: Mine, data: Data) -> Client:
        return c.with_(params=_put(c.net, c.params, me.own))

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, None]:
        places = _places(c.net, layers).to(c.params.device)
        c = me.keep(c, c.params.index_select(0, places))
        return c.with_(params=c.params.scatter(0, places, c.start.index_select(0, places))), None

    def sent(net: Network) -> Tensor:
        kept = torch.zeros(net.size).scatter(0, _places(net, layers), 1.0)
        return (net.layout.per_layer_sum(kept) < net.layout.layer_sizes).to(torch.float32)

    def serve(net: Network, model: Tensor, mine: Tree) -> Tensor:
        return model if mine is None else _put(net, model, mine)

    def _put(net: Network, params: Tensor, own: Tensor) -> Tensor:
        return params.scatter(0, _places(net, layers).to(params.device), own)

    return Part(keep=keep, begin=begin, report=report, sent=sent, serve=serve)


def _places(net: Network, layers: str | list[str] | tuple[str, ...]) -> Tensor:
    """Where what is private lies in the flat vector: [p] int64."""
    slots = [slot for slot in net.layout.slots if _is_private(net, slot, layers)]
    if not slots:
        raise InputError(
            f"The part 'private_layers' finds nothing of layers={layers!r} in this model; its layers are "
            f"{', '.join(layer.name for layer in net.layout.layers)}."
        )
    if sum(slot.size for slot in slots) == net.size:
        raise InputError("The part 'private_layers' leaves no layer that clients share; name fewer of them.")
    return torch.cat([torch.arange(slot.start, slot.stop) for slot in slots])


def _is_private(net: Network, slot: Slot, layers: str | list[str] | tuple[str, ...]) -> bool:
    name = net.layout.layers[slot.layer].name
    if layers == "statistics":
        return not slot.by_gradient
    if layers == "norms":
        return isinstance(net.module.get_submodule(name), _NORMS)
    if layers in ("head", "body"):
        return (net.layout.layers[net.head_layer].name == name) == (layers == "head")
    wanted = [layers] if isinstance(layers, str) else list(layers)
    known = {layer.name for layer in net.layout.layers}
    for one in wanted:
        if one not in known:
            raise InputError(f"The model has no layer '{one}'; its layers are {', '.join(sorted(known))}.")
    return name in wanted
