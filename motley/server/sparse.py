"""Changes of which only the largest go over the wire: up to the server, or both ways.

How long the whole vector is, a payload says by the shape of an empty tensor [0, P], which takes no bytes: shapes are
looked at before anything of their size is made.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from motley.core.network import Network
from motley.core.part import Part, part
from motley.core.ranges import PositiveShare
from motley.core.types import Client, Data, Facts, Mine, Round, Setting, Tree, Updates
from motley.server.largest_entries import top_k


def _length(payload: Tree) -> int:
    """How many numbers the whole vector has."""
    return int(payload["whole"].shape[-1])


def _count(share: float, size: int) -> int:
    """How many entries a share of them is, at least one."""
    return max(1, math.ceil(share * size - 1e-9))


@part("wire", neutral={"share": 1.0}, example={"share": 0.1})
def largest_changes(share: PositiveShare = 0.1) -> Part:
    """Only the ``share`` of a client's changes that is largest in size goes up: values and places (Aji, Heafield 2017).

    ``ceil(share P)`` of P parameters, eight bytes each in place of four, so that up to a share of one half fewer bytes
    go up. What is left out is lost: clients keep no memory of it.
    """

    def encode(c: Client, me: Mine, payload: Tree) -> Tree:
        if share == 1.0:
            return payload
        places = top_k(payload, _count(share, payload.shape[-1]))
        whole = payload.new_zeros((0, payload.shape[-1]))
        return {"places": places.to(torch.int32), "values": payload.gather(-1, places), "whole": whole}

    def decode(payload: Tree) -> Tree:
        if share == 1.0:
            return payload
        dense: Tensor = payload["values"].new_zeros(_length(payload))
        return dense.scatter(0, payload["places"].to(torch.int64), payload["values"])

    return Part(encode=encode, decode=decode)


def ternary(change: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The ``share`` of entries that is largest in size, and the mean of these sizes: places [..., k], mu [...]."""
    places = top_k(change, _count(share, change.shape[-1]))
    return places, change.gather(-1, places).abs().mean(-1)


def ternarised(change: Tensor, share: float) -> Tensor:
    """``STC(T) = mu sign(T)`` on the largest entries of T in size, 0 elsewhere; mu is the mean of their sizes: [P]."""
    places, mu = ternary(change, share)
    return torch.zeros_like(change).scatter(-1, places, mu * change.gather(-1, places).sign())


@part("wire", example={"share": 0.1, "share_down": 0.1})
def sparse_ternary(share: PositiveShare = 0.0025, share_down: PositiveShare = 0.0025) -> Part:
    """Sparse ternary compression both ways, with memories of what was left out (Sattler et al. 2019, Algorithm 2).

    Client: ``a = delta_k + R_k``; sends ``STC(a)``; ``R_k = a - STC(a)``. Server: ``a = mean + R``; the model moves by
    ``STC(a)``; ``R = a - STC(a)``. A place with its sign takes four bytes (positions are not Golomb-coded), an upload
    ``4 ceil(share P) + 4``. The model goes down whole: clients may have missed rounds.
    """

    def init(setting: Setting) -> Tree:
        return {"residual": torch.zeros_like(setting.params)}

    def keep(net: Network, start: Tensor, facts: Facts) -> Tree:
        return torch.zeros_like(start)

    def report(c: Client, me: Mine, data: Data) -> tuple[Client, None]:
        wanted = c.params - c.start + me.own
        return me.keep(me.note(c, wanted), wanted - ternarised(wanted, share)), None

    def encode(c: Client, me: Mine, payload: Tree) -> Tree:
        places, mu = ternary(me.notes, share)
        size, values = payload.shape[-1], me.notes.gather(-1, places)
        places = torch.where(values == 0, size, places)  # nothing there: a place behind the last
        signed = torch.where(values < 0, -1 - places, places).to(torch.int32)
        return {"places": signed, "mu": mu, "whole": payload.new_zeros((0, size))}

    def decode(payload: Tree) -> Tree:
        signed, mu = payload["places"].to(torch.int64), payload["mu"]
        places, values = torch.where(signed < 0, -1 - signed, signed), torch.where(signed < 0, -mu, mu)
        dense: Tensor = mu.new_zeros(_length(payload) + 1).scatter(-1, places, values)
        return dense[:-1]

    def step(s: Tree, rnd: Round, old: Tensor, new: Tensor, updates: Updates) -> tuple[Tensor, Tree]:
        wanted = new - old + s["residual"]
        sent = ternarised(wanted, share_down)
        return old + sent, {"residual": wanted - sent}

    why = "it remembers what was left out of a client's own change, which the other alters on its way"
    return Part(
        init=init,
        keep=keep,
        report=report,
        encode=encode,
        decode=decode,
        step=step,
        refuses={"largest_changes": why, "hand_over_noise": why},
    )
